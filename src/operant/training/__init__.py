"""A training run: its loop, folder, evaluation, reproduction; `drivers` move the rows."""
