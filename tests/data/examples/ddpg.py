from operant.keras.optimizers import Adam

import operant
from operant import DDPG
from operant.utils.buffers import ReplayBuffer2
from operant.utils.common import ModelReader, create_envs

envs = create_envs('BipedalWalker-v3', 16, preprocess=False)
buffers = [
    ReplayBuffer2(62500, slots=5, initial_size=1560, batch_size=8)
    for _ in range(len(envs))
]
actor_model_cfg = operant.agents['ddpg']['actor_model']['ann'][0]
critic_model_cfg = operant.agents['ddpg']['critic_model']['ann'][0]
optimizer = Adam(learning_rate=7e-4)
actor_model = ModelReader(
    actor_model_cfg,
    output_units=[envs[0].action_space.shape[0]],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
critic_model = ModelReader(
    actor_model_cfg,
    output_units=[1],
    input_shape=envs[0].observation_space.shape[0] + envs[0].action_space.shape[0],
    optimizer=optimizer,
).build_model()
agent = DDPG(
    envs,
    actor_model,
    critic_model,
    buffers,
    checkpoints=['ddpg-actor-bipedal-walker.tf', 'ddpg-critic-bipedal-walker.tf'],
)
agent.fit(target_reward=100)
