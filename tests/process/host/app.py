from litestar import Litestar, get, post
from litestar.params import FromPath

from oncebox import OnceboxPlugin, Transaction

inbox = OnceboxPlugin("litestar.toml")  # everything below /inbox


def place(db: Transaction, sku: str) -> int:
    [(number,)] = db.execute("insert into orders (sku) values (?) returning number", (sku,))
    db.emit("mail", id=f"order-{number}", body={"order": number})
    return int(number)


def state(db: Transaction, number: int) -> dict[str, bool]:
    [(paid, mailed)] = db.execute("select paid, mailed from orders where number = ?", (number,))
    return {"paid": bool(paid), "mailed": bool(mailed)}


@post("/orders")
async def create(data: dict[str, str]) -> dict[str, int]:
    return {"order": await inbox.transaction(place, data["sku"])}


@get("/orders/{number:int}")
async def show(number: FromPath[int]) -> dict[str, bool]:
    return await inbox.transaction(state, number)


app = Litestar([create, show], plugins=[inbox])
