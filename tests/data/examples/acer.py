from operant.keras.optimizers import Adam

import operant
from operant import ACER
from operant.utils.buffers import ReplayBuffer1
from operant.utils.common import ModelReader, create_envs

envs = create_envs('PongNoFrameskip-v4', 16)
buffers = [
    ReplayBuffer1(5000, initial_size=500, batch_size=1) for _ in range(len(envs))
]
model_cfg = operant.agents['acer']['model']['cnn'][0]
optimizer = Adam(learning_rate=7e-4)
model = ModelReader(
    model_cfg,
    output_units=[envs[0].action_space.n, envs[0].action_space.n],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
agent = ACER(envs, model, buffers, checkpoints=['acer-pong.tf'])
agent.fit(target_reward=19)
