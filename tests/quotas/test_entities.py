"""The precedence of quotas, and who shares each of them."""

from __future__ import annotations

import itertools

import pytest

from tidemark.quotas.entities import QuotaEntity, applying_to, entity_from_wire, parts_to_wire

U, C = "alice", "etl"
BOTH, USER, CLIENT = QuotaEntity(U, C), QuotaEntity(U), QuotaEntity(None, C)

# In Kafka's words: /config/users/<user>/clients/<client-id> and so on, the strongest first.
PRECEDENCE = [
    (QuotaEntity(U, C), BOTH),
    (QuotaEntity(U, ""), BOTH),
    (QuotaEntity(U), USER),
    (QuotaEntity("", C), BOTH),
    (QuotaEntity("", ""), BOTH),
    (QuotaEntity(""), USER),
    (QuotaEntity(None, C), CLIENT),
    (QuotaEntity(None, ""), CLIENT),
]


def test_of_every_set_of_quotas_the_first_of_the_table_applies() -> None:
    order = [entity for entity, _ in PRECEDENCE]
    others = {QuotaEntity("bob"): 1.0, QuotaEntity("bob", C): 2.0, QuotaEntity(None, "x"): 3.0}
    for chosen in itertools.product([False, True], repeat=len(order)):
        quotas = others | {entity: 10.0 + i for i, entity in enumerate(order) if chosen[i]}
        found = applying_to(U, C, quotas.get)
        if not any(chosen):
            assert found is None
        else:
            first = chosen.index(True)
            assert found == (10.0 + first, PRECEDENCE[first][1])


def test_a_client_without_an_id_has_the_defaults_of_client_ids_only() -> None:
    assert applying_to(U, "", {QuotaEntity(U, C): 1.0}.get) is None
    found = applying_to(U, "", {QuotaEntity(None, ""): 2.0}.get)
    assert found == (2.0, QuotaEntity(None, ""))


@pytest.mark.parametrize("entity", [entity for entity, _ in PRECEDENCE])
def test_an_entity_goes_over_the_wire(entity: QuotaEntity) -> None:
    assert entity_from_wire(parts_to_wire(entity)) == entity
