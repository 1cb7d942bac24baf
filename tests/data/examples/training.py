import operant
from operant import A2C
from operant.utils.common import ModelReader, create_envs

envs = create_envs('PongNoFrameskip-v4')
model = ModelReader(
    operant.agents['a2c']['model']['cnn'][0],
    output_units=[6, 1],
    input_shape=envs[0].observation_space.shape,
    optimizer='adam',
).build_model()
agent = A2C(envs, model)
agent.fit(target_reward=19)
