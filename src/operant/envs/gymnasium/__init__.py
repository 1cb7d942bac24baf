"""Environments of Gymnasium, ALE and PettingZoo as those of operant."""
