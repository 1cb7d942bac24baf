"""Arithmetic on arrays: returns, losses, distributions, running statistics, schedules, optimisation steps.

Every function here is pure and compiled code may call it. Nothing here knows agents, spaces or networks.
"""
