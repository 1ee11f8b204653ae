import msgspec

from oncebox import Event, Transaction, on, setup


class Payment(msgspec.Struct):
    order: int


@setup
def tables(db: Transaction) -> None:
    db.execute(
        "create table if not exists orders (number integer primary key, sku text not null, "
        "paid integer not null default 0, mailed integer not null default 0) strict"
    )


@on("bank", type="paid")
def mark_paid(event: Event, db: Transaction) -> None:
    db.execute("update orders set paid = 1 where number = ?", (event.decode(Payment).order,))


@on("mail")
async def send_mail(event: Event, db: Transaction) -> None:
    # … send it; then, in one commit with the mark `done`:
    db.execute("update orders set mailed = 1 where number = ?", (event.decode(Payment).order,))
