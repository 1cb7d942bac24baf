from operant.keras.optimizers import Adam

import operant
from operant import TD3
from operant.utils.buffers import ReplayBuffer2
from operant.utils.common import ModelReader, create_envs

envs = create_envs('BipedalWalker-v3', 16, preprocess=False)
buffers = [
    ReplayBuffer2(62500, slots=5, initial_size=1560, batch_size=8)
    for _ in range(len(envs))
]
actor_model_cfg = operant.agents['td3']['actor_model']['ann'][0]
critic_model_cfg = operant.agents['td3']['critic_model']['ann'][0]
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
agent = TD3(
    envs,
    actor_model,
    critic_model,
    buffers,
    checkpoints=[
        'td3-actor-bipedal-walker.tf',
        'td3-critic1-bipedal-walker.tf',
        'td3-critic2-bipedal-walker.tf',
    ],
)
agent.fit(target_reward=100)
