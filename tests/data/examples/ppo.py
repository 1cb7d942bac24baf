from operant.keras.optimizers import Adam

import operant
from operant import PPO
from operant.utils.common import ModelReader, create_envs

envs = create_envs('PongNoFrameskip-v4', 16)
model_cfg = operant.agents['ppo']['model']['cnn'][0]
optimizer = Adam(learning_rate=7e-4)
model = ModelReader(
    model_cfg,
    output_units=[envs[0].action_space.n, 1],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
agent = PPO(envs, model, checkpoints=['ppo-pong.tf'])
agent.fit(target_reward=19)
