import msgspec
from litestar import Litestar, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from oncebox import OnceboxPlugin, Transaction

inbox = OnceboxPlugin("litestar.toml")  # everything below /inbox


class NewOrder(msgspec.Struct):
    sku: str


def place(db: Transaction, sku: str) -> int:
    [(number,)] = db.execute("insert into orders (sku) values (?) returning number", (sku,))
    db.emit("mail", id=f"order-{number}", body={"order": number})
    return int(number)


def state(db: Transaction, number: int) -> dict[str, bool] | None:
    for paid, mailed in db.execute("select paid, mailed from orders where number = ?", (number,)):
        return {"paid": bool(paid), "mailed": bool(mailed)}
    return None


@post("/orders")
async def create(data: NewOrder) -> dict[str, int]:
    return {"order": await inbox.transaction(place, data.sku)}


@get("/orders/{number:int}")
async def show(number: FromPath[int]) -> dict[str, bool]:
    found = await inbox.transaction(state, number)
    if found is None:
        raise NotFoundException(f"there is no order {number}")
    return found


app = Litestar([create, show], plugins=[inbox])
