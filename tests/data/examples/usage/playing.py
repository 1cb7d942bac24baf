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
model.load_weights(
    '/path/to/trained-weights.tf'
).expect_partial()
agent = A2C(envs, model)
agent.play(render=True)
agent.play(video_dir='/path/to/video-dir/')
agent.play(frame_dir='/path/to/frame-dir/')
