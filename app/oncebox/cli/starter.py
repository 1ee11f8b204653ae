"""Starter: the first files of a folder of the user's own, as texts. Pure."""

from __future__ import annotations

from oncebox.accept.handshake import TOKENS
from oncebox.accept.presets import Preset, find_preset
from oncebox.accept.spec import SignatureSpec

SHARED = {
    "hex": "its key in hex digits",
    "base64": "its key in base64",
    "whsec": "its secret, with whsec_ before it or without",
    "sha1(second)": "the public key, a bar and the private key: public|private",
}
PUBLIC = {
    "pem": 'its public key in PEM, in double quotes over several lines, or say "file:key.pem" in litestar.toml',
    "cert-url": 'its certificate in PEM, in double quotes over several lines, or say "file:cert.pem" in litestar.toml',
    "ed25519-hex": "its public key, 64 hex digits",
    "spki-base64": "its public key in base64, as it shows it",
    "whpk": "its public key, which begins with whpk_",
}

TOML = """\
# {name}: an Oncebox inbox. `oncebox check` tells what is in here, `oncebox check --print-defaults` every key there is.
handlers = ["handlers"]               # handlers.py beside this file
env_file = ".env"

[server]
#public_url = "https://hooks.example.com"   # what senders call, when a proxy with TLS stands in front

[store]
path = "oncebox.db"

# Something to try things out with: anybody on this machine may send, nobody else.
#   curl -i http://127.0.0.1:8640/in/demo -H 'Idempotency-Key: order-1' -d '{{"hello": "world"}}'
[sources.demo]
id = "header:Idempotency-Key"
type = "header:X-Event-Type"
unsigned = true
loopback_only = true
"""

SOURCE = """
# Tell {preset} to send to http(s)://YOUR-HOST/in/{name}
[sources.{name}]
preset = "{preset}"
secrets = ["env:{variable}"]
"""

TRIED_OUT = """\
verify_token = "env:{variable}"      # a text of your choice, which {preset} repeats when it tries the URL out
"""

SIGNED_URL = """\
#url = "https://hooks.example.com/in/{name}"   # {preset} signs its URL: the very text that it was given
"""

# What only the owner of the account knows. Until it is put right, every request is refused.
KNOWN_TO_YOU = {
    "google_pubsub": """\
# The service account of the push subscription; until this is right, every request is refused.
signature = { claims = { match = { email = "NAME@PROJECT.iam.gserviceaccount.com" } } }
""",
    "paypal": """\
# The id of the webhook, as the dashboard shows it; until this is right, every request is refused.
signature = { configured_id = "WEBHOOK-ID" }
""",
}

MISSING_ID = """\
# {preset} sends no id that can be relied on. "unique": each request is its own event, its retries too.
on_missing_id = "unique"
"""

HANDLERS = '''\
"""What happens when an event comes in. `def f(event, db)` commits together with the mark that it is done."""

from oncebox import Event, Transaction, on, setup


@setup
def tables(db: Transaction) -> None:
    """Runs at every start."""
    db.execute("create table if not exists greetings (id text primary key, said text not null) strict")


@on("demo")
def greet(event: Event, db: Transaction) -> None:
    """Its row and "done" are written in one transaction: exactly once, whatever fails."""
    db.execute("insert into greetings (id, said) values (?, ?) on conflict do nothing", (event.id, event.text()))
'''

TESTS = '''\
"""What handlers.py promises, on a real inbox in a temporary file: `pip install pytest`, then `pytest`."""

from oncebox.testing import Inbox


def test_a_greeting_is_written_once() -> None:
    with Inbox(handlers="handlers") as inbox:
        event = inbox.receive("demo", "hello", id="order-1")
        inbox.crash()  # before its handler has run
        assert inbox.receive("demo", "hello", id="order-1") == event  # the sender's retry
        inbox.drain()
        assert inbox.rows("select id, said from greetings") == [("order-1", "hello")]
'''

IGNORED = """\
.env
__pycache__/
*.db
*.db-wal
*.db-shm
*.db.lock
*.db.token
"""


def contents(name: str, senders: list[str]) -> dict[str, str]:
    """The files by name. Raises ConfigError for a sender that is not known."""
    toml, env = (
        TOML.format(name=" ".join(name.split())),
        "# Copy this to .env and fill it in. Keep .env out of version control.\n",
    )
    for sender in senders:
        preset = find_preset(sender, "--for")
        toml += _source(sender, preset)
        env += _variables(preset)
    return {
        "litestar.toml": toml,
        "handlers.py": HANDLERS,
        "test_handlers.py": TESTS,
        ".env.example": env,
        ".gitignore": IGNORED,
    }


def _source(sender: str, preset: Preset) -> str:
    names = {"name": sender.replace("_", "-"), "preset": preset.name}
    text = SOURCE.format(**names, variable=f"{preset.name.upper()}_SECRET")
    if preset.handshake in TOKENS:
        text += TRIED_OUT.format(**names, variable=f"{preset.name.upper()}_VERIFY_TOKEN")
    if preset.signature is not None and "{url}" in preset.signature.message:
        text += SIGNED_URL.format(**names)
    text += KNOWN_TO_YOU.get(preset.name, "")
    return text + (MISSING_ID.format(**names) if preset.id is None else "")


def _variables(preset: Preset) -> str:
    name = preset.name.upper()
    text = f"# {preset.name}: {_wanted(preset.signature)}\n{name}_SECRET=\n"
    return text + (f"{name}_VERIFY_TOKEN=\n" if preset.handshake in TOKENS else "")


def _wanted(signature: SignatureSpec | None) -> str:
    """What the secret of a sender is."""
    if signature is None:
        return "its secret"
    if signature.scheme == "pubkey":
        return f"{PUBLIC[signature.pub]}, which is no secret"
    if signature.scheme == "jws" and not signature.algs[0].startswith("HS"):
        return f"{PUBLIC['pem']}, which is no secret"
    return SHARED.get(signature.key, "its secret, as it shows it")
