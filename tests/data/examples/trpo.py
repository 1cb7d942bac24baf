from operant.keras.optimizers import Adam

import operant
from operant import TRPO
from operant.utils.common import ModelReader, create_envs

envs = create_envs('PongNoFrameskip-v4', 16)
actor_model_cfg = operant.agents['trpo']['actor_model']['cnn'][0]
critic_model_cfg = operant.agents['trpo']['critic_model']['cnn'][0]
optimizer = Adam()
actor_model = ModelReader(
    actor_model_cfg,
    output_units=[envs[0].action_space.n],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
critic_model = ModelReader(
    actor_model_cfg,
    output_units=[1],
    input_shape=envs[0].observation_space.shape,
    optimizer=optimizer,
).build_model()
agent = TRPO(
    envs,
    actor_model,
    critic_model,
    checkpoints=[
        'trpo-actor-pong.tf',
        'trpo-critic-pong.tf',
    ],
)
agent.fit(target_reward=100)
