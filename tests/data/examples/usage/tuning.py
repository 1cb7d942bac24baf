import os

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np
import optuna
import operant as tf
from operant.keras.optimizers import Adam

import operant
from operant import PPO
from operant.utils.common import ModelReader, create_envs


def get_hparams(trial):
    return {
        'n_steps': int(
            trial.suggest_categorical('n_steps', [2 ** i for i in range(2, 11)])
        ),
        'learning_rate': trial.suggest_loguniform('learning_rate', 1e-5, 1e-2),
        'epsilon': trial.suggest_loguniform('epsilon', 1e-7, 1e-1),
        'entropy_coef': trial.suggest_loguniform('entropy_coef', 1e-8, 2e-1),
        'n_envs': int(
            trial.suggest_categorical('n_envs', [2 ** i for i in range(4, 7)])
        ),
        'grad_norm': trial.suggest_uniform('grad_norm', 0.1, 10.0),
        'lam': trial.suggest_loguniform('lam', 0.65, 0.99),
        'clip_norm': trial.suggest_loguniform('clip_norm', 0.01, 10),
    }


def optimize_agent(trial):
    hparams = get_hparams(trial)
    envs = create_envs('BreakoutNoFrameskip-v4', hparams['n_envs'])
    optimizer = Adam(
        hparams['learning_rate'],
        epsilon=hparams['epsilon'],
    )
    model_cfg = operant.agents['ppo']['model']['cnn'][0]
    model = ModelReader(
        model_cfg,
        output_units=[envs[0].action_space.n, 1],
        input_shape=envs[0].observation_space.shape,
        optimizer=optimizer,
    ).build_model()
    model.compile(optimizer)
    agent = PPO(
        envs,
        model,
        entropy_coef=hparams['entropy_coef'],
        grad_norm=hparams['grad_norm'],
        n_steps=hparams['n_steps'],
        lam=hparams['lam'],
        clip_norm=hparams['clip_norm'],
        trial=trial,
        quiet=True,
    )
    steps = 500000
    agent.fit(max_steps=steps)
    current_rewards = np.around(np.mean(agent.total_rewards), 2)
    if not np.isfinite(current_rewards):
        current_rewards = 0
    return current_rewards


def run_trial():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tf.get_logger().setLevel('ERROR')
    study = optuna.create_study(
        study_name='ppo-example',
        storage='sqlite:///ppo-example.db',
        load_if_exists=True,
        direction='maximize',
    )
    optuna.logging.set_verbosity(optuna.logging.INFO)
    study.optimize(optimize_agent, n_trials=1)


if __name__ == '__main__':
    for _ in range(100):
        with ProcessPoolExecutor(1) as executor:
            future_trials = [executor.submit(run_trial)]
            for future_trial in as_completed(future_trials):
                future_trial.result()
