"""What the schema says of an operation is what the operation takes and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perform.calls import CALLERS, call
from process.rig import Answer, Server
from process.servers import Serve

pytestmark = pytest.mark.process

ORDERS = '''
from typing import Annotated
import msgspec
from oncebox import Reply, Transaction, operation

class Item(msgspec.Struct):
    sku: Annotated[str, msgspec.Meta(examples=["sku-1"])]
    count: Annotated[int, msgspec.Meta(ge=1, examples=[2])] = 1

class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What is ordered."""
    email: Annotated[str, msgspec.Meta(pattern="@", examples=["ann@example.com"])]
    items: Annotated[list[Item], msgspec.Meta(min_length=1)]

@operation("orders", methods=("POST", "PUT"))
def create(order: Order, db: Transaction) -> Reply:
    """Make an order.

    It is shipped the same day.
    """
    return Reply(201, {"lines": len(order.items)}, headers={"Location": "/orders/1"})
'''


def example_of(schema: Any, shape: Any) -> Any:
    """A value as the schema describes it, of the examples that stand in it."""
    if "$ref" in shape:
        shape = schema["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
    if "examples" in shape:
        return shape["examples"][0]
    if shape["type"] == "array":
        return [example_of(schema, shape["items"])] * shape.get("minItems", 0)
    assert shape["type"] == "object"
    return {name: example_of(schema, one) for name, one in shape["properties"].items()}


def read_schema(server: Server) -> Any:
    return json.loads(server.get("/schema/openapi.json").body)


def post(server: Server, key: str, body: object) -> Answer:
    return call(server, "orders", key, json.dumps(body).encode())


def test_the_example_in_the_schema_is_taken_and_other_bodies_are_told_where_they_do_not_fit(serve: Serve) -> None:
    server = serve(handlers=ORDERS, config=CALLERS).start()
    schema = read_schema(server)
    said = schema["paths"]["/do/orders"]
    assert list(said) == ["post", "put"]
    assert said["post"]["summary"] == "Make an order."
    assert said["post"]["description"] == "Make an order.\n\nIt is shipped the same day."
    assert said["post"]["security"] == [{"caller": []}]
    example = example_of(schema, said["post"]["requestBody"]["content"]["application/json"]["schema"])
    assert example == {"email": "ann@example.com", "items": [{"sku": "sku-1", "count": 2}]}
    assert post(server, "k1", example).status == 201
    for key, body, place in (
        ("k2", {**example, "items": [{"sku": "sku-1", "count": 0}]}, "$.items[0].count"),
        ("k3", {**example, "items": []}, "$.items"),
        ("k4", {"items": example["items"]}, "email"),
    ):
        answer = post(server, key, body)
        assert (answer.status, answer.problem) == (422, "bad-body")
        assert str(answer.status) in said["post"]["responses"]
        assert place in json.loads(answer.body)["detail"]
        assert post(server, key, example).status == 201


def test_the_schema_of_all_that_is_asked_is_there_beside_the_operations(serve: Serve) -> None:
    server = serve(handlers=ORDERS, config=CALLERS).start()
    schema = read_schema(server)
    assert {"/do/orders", "/api/operations", "/api/operations/resolve", "/api/events", "/healthz"} < schema[
        "paths"
    ].keys()
    assert schema["openapi"].startswith("3.1")
