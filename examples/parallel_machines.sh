#!/bin/sh
# Environments on several machines (here: all of them this one). Run it in the repository's root.
set -e

# Servers let in whoever knows the token. Copy it to the agent's machine in a file, and export it there as well.
OPERANT_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(16))')
export OPERANT_TOKEN

# Environment machine 1
python run.py --environment gym --level CartPole-v1 --remote socket-server --port 65432 &
first=$!

# Environment machine 2
python run.py --environment gym --level CartPole-v1 --remote socket-server --port 65433 &
second=$!
trap 'kill $first $second 2>/dev/null || true' EXIT

# Agent machine
python run.py --agent benchmarks/configs/ppo1.json --episodes 100 \
    --num-parallel 2 --remote socket-client --host 127.0.0.1,127.0.0.1 \
    --port 65432,65433 --batch-agent-calls
