from operant.keras.optimizers import Adam

import operant
from operant import DQN
from operant.utils.buffers import ReplayBuffer1
from operant.utils.common import ModelReader, create_envs

envs = create_envs('PongNoFrameskip-v4', 3, max_frame=True)
buffers = [
    ReplayBuffer1(16666, initial_size=3333, batch_size=10) for _ in range(len(envs))
]
model_cfg = operant.agents['dqn']['model']['cnn'][0]
optimizer = Adam(learning_rate=7e-4)
model = ModelReader(
    model_cfg,
    output_units=[envs[0].action_space.n],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
agent = DQN(envs, model, buffers, checkpoints=['dqn-pong.tf'])
agent.fit(target_reward=19)
