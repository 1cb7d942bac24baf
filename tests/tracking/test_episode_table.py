"""Finished episodes as columns: what a sequence of their rows would be."""

from __future__ import annotations

import numpy as np
import pytest

from operant.tracking.record import EpisodeRecord, EpisodeTable

ROWS = [
    EpisodeRecord(10, 0.5, 3.0, 10, 0, 3.0, 3.0, {"won": 1.0}),
    EpisodeRecord(12, 0.6, 1.0, 5, 1, 2.0, 3.0, {"won": 0.0}),
    EpisodeRecord(20, 0.9, -1.0, 10, 0, 1.0, 3.0, {"won": 1.0}),
]


def test_a_table_is_a_sequence_of_its_rows():
    table = EpisodeTable.of(EpisodeRecord, ROWS)
    assert list(table) == ROWS and table == ROWS and len(table) == 3
    assert EpisodeTable.of(EpisodeRecord, table) is table
    assert [table[i] for i in (0, 2, -1, -3)] == [ROWS[i] for i in (0, 2, -1, -3)]
    assert table[1:] == ROWS[1:] and isinstance(table[1:], EpisodeTable)
    assert ROWS[1] in table and table.index(ROWS[2]) == 2
    assert {type(x) for x in table[0][:7]} == {int, float}
    for index in (3, -4):
        with pytest.raises(IndexError):
            table[index]


def test_tables_are_joined_with_nothing_where_nothing_was_reported():
    plain = [row._replace(info={}) for row in ROWS]
    assert list(EpisodeTable.of(EpisodeRecord, plain)) == plain
    parts = [EpisodeTable.of(EpisodeRecord, rows) for rows in (ROWS[:2], [], plain[2:])]
    whole = EpisodeTable.joined(EpisodeRecord, parts)
    assert list(whole)[:2] == ROWS[:2] and np.isnan(whole[2].info["won"])
    assert EpisodeTable.joined(EpisodeRecord, [parts[1], parts[0]]) == ROWS[:2]
    empty = EpisodeTable.joined(EpisodeRecord, parts[1:2])
    assert not len(empty) and list(empty) == [] and empty == []
