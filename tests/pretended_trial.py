"""The process of a trial without JAX: its reward is a function of the settings.

For tests of the study around it.

The environment's name says what it does beside: `crash` dies on large learning rates, `refuse` cannot be
built, `raise` fails, `hang` never ends, `silent` ends no episode, `nan` ends with no number, `gap` has none
in the middle.
"""

import functools
import json
import math
import os
import sys
import time
from multiprocessing.connection import Connection

REPORTS = 20


def reward(hyper, run):
    """Best at lr = 0.001, and with more steps."""
    return 100 - 10 * (math.log10(hyper.get("lr", 7e-4)) + 3) ** 2 + hyper.get("n_steps", 0) / 1000


def work(descriptor):
    connection = Connection(descriptor)

    def send(**message):
        connection.send_bytes(json.dumps(message).encode())

    while True:
        try:
            order = json.loads(connection.recv_bytes())
        except EOFError:
            return
        if order["do"] == "build":
            [trial] = order["trials"]
            if trial["run"]["env"] == "refuse" or trial["hyper"].get("n_steps") == 13:
                send(kind="failed", text="The environment 'refuse' does not exist.", traceback="")
            else:
                send(kind="built")
            continue
        for number, trial in enumerate(order["trials"]):
            train(connection, functools.partial(send, trial=number), trial["hyper"], trial["run"])
        send(kind="idle")


def train(connection, send, hyper, run):
    env = run["env"].removeprefix("jax:")
    if env == "crash" and hyper["lr"] > 1e-3:
        print("Out of memory, says the system.", file=sys.stderr, flush=True)
        os._exit(3)
    if env == "raise":
        send(kind="failed", text="ValueError: no", traceback="Traceback ...")
        return
    if env == "silent":
        text = "No episode ended within 10 steps, so there is no return. Raise --trial-steps."
        send(kind="failed", text=text, traceback="")
        return
    value = reward(hyper, run)
    while env == "hang":
        time.sleep(0.05)
    for k in range(1, REPORTS + 1):
        step = run["max_steps"] * k // REPORTS
        gap = env == "gap" and 8 <= k <= 10
        send(kind="report", step=step, value=math.nan if gap else value * k / REPORTS)
        if json.loads(connection.recv_bytes())["prune"]:
            now = value * k / REPORTS
            send(kind="pruned", value=now, seed_values=[now], step=step, episodes=k, seconds=0.1)
            return
    value = math.nan if env == "nan" else value
    send(
        kind="ended",
        value=value,
        seed_values=[value],
        step=run["max_steps"],
        episodes=REPORTS,
        seconds=0.1,
    )
