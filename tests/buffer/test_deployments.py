"""Redis as others run it: an ACL user, a database of its own, TLS, a restart and a failover behind one address."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from forwarder import Forwarder
from journal_builders import RULES, START, begin, finish, outcome, turn
from redis.asyncio import Redis
from redis.crc import key_slot
from rewinding_server import RewindingServer

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer, Waiting
from stream_rl.errors import BufferUnavailable, JournalMismatch
from stream_rl.sample import LedgerEntry

PERMISSIONS = ("~stream_rl:*", "+@all", "-@dangerous", "+info")
"""What docs/design.md tells operators to give the buffer's user."""


def path_of(server: EmbeddedServer) -> str:
    return server.url.removeprefix("unix://")


@pytest.fixture
async def admin(server: EmbeddedServer) -> AsyncIterator[Redis]:
    async with Redis(unix_socket_path=path_of(server)) as client:
        yield client


async def whole_cycle(buffer: TrajectoryBuffer) -> None:
    """A run's every kind of call once."""
    await begin(buffer)
    assert not await buffer.evicts()
    claim = await buffer.claim_trainer()
    (image,) = await buffer.put_images([b"pixels"])
    first, *rest = await buffer.lease("p", 4)
    await buffer.commit(first.lease, 0, [START, replace(turn(0, 20_000), images=(image,))], outcome())
    for sample in rest:
        await finish(buffer, sample)
    entry = await buffer.take_step(claim, 1)
    assert isinstance(entry, LedgerEntry)
    assert len(await buffer.load_groups(entry.groups)) == 2
    assert await buffer.load_images([image]) == {image: b"pixels"}
    assert (await buffer.snapshot()).trained == 2


async def test_an_acl_user_and_a_database_in_the_url(server: EmbeddedServer, admin: Redis) -> None:
    await admin.execute_command("ACL", "SETUSER", "trainer", "on", ">p@ss/word", *PERMISSIONS)
    async with Forwarder(path_of(server)) as address:
        url = f"redis://trainer:p%40ss%2Fword@127.0.0.1:{address.port}/5"
        async with await TrajectoryBuffer.connect(url, "tenant") as buffer:
            await whole_cycle(buffer)
            assert "word" not in buffer._connection.url
        url = f"redis://trainer@127.0.0.1:{address.port}/5"
        async with await TrajectoryBuffer.connect(url, "tenant", password="p@ss/word") as buffer:
            assert await buffer.was_opened()
    async with Redis(unix_socket_path=path_of(server), db=5) as database:
        keys = [key async for key in database.scan_iter("*")]
    assert len(keys) > 10
    assert {key_slot(key) for key in keys} == {key_slot(b"stream_rl:{tenant}:")}
    assert [key async for key in admin.scan_iter("*{tenant}*")] == []


async def test_a_permission_that_is_missing_is_named(server: EmbeddedServer, admin: Redis) -> None:
    await admin.execute_command("ACL", "SETUSER", "guest", "on", ">guest", "~stream_rl:*", "+@all", "-@dangerous")
    url = server.url.replace("unix://", "unix://guest:guest@")
    async with await TrajectoryBuffer.connect(url, "tenant-2") as buffer:
        for call in (buffer.open_run(RULES), buffer.evicts()):
            with pytest.raises(BufferUnavailable, match=r"does not let this user .*~stream_rl:\* .* \+info"):
                await call


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for 127.0.0.1, and the certificate that clients have to trust."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=127.0.0.1")
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    both, public = tmp_path / "server.pem", tmp_path / "ca.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(private + public.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, public


async def test_tls_with_a_certificate_that_is_checked(
    server: EmbeddedServer, tls: tuple[ssl.SSLContext, Path], run_name: str
) -> None:
    context, certificate = tls
    async with Forwarder(path_of(server), context) as address:
        url = f"rediss://127.0.0.1:{address.port}/0"
        async with await TrajectoryBuffer.connect(f"{url}?ssl_ca_certs={certificate}", run_name) as buffer:
            await whole_cycle(buffer)
        with pytest.raises(BufferUnavailable, match="certificate verify failed"):
            await TrajectoryBuffer.connect(url, run_name, timeout=1.0)


async def test_a_restart_behind_one_address_is_waited_out(tmp_path: Path) -> None:
    with RewindingServer(tmp_path / "data") as own:
        async with Forwarder(path_of(own)) as address:
            url = f"redis://127.0.0.1:{address.port}"
            async with await TrajectoryBuffer.connect(url, "run") as buffer:
                await begin(buffer)
                (sample,) = await buffer.lease("p", 1)
                own.kill()
                commit = asyncio.create_task(buffer.commit(sample.lease, 0, [START, turn(0)]))
                await asyncio.to_thread(own.start)
                await commit
                assert await buffer.journal_turns() == {"0-0": 1}


async def test_a_failover_behind_one_address_loses_nothing_that_clients_know(tmp_path: Path) -> None:
    with RewindingServer(tmp_path / "primary") as primary, EmbeddedServer(tmp_path / "replica") as replica:
        async with (
            Forwarder(path_of(primary)) as address,
            Forwarder(path_of(primary)) as stream,
            Redis(unix_socket_path=path_of(replica)) as promoted,
            await TrajectoryBuffer.connect(f"redis://127.0.0.1:{address.port}", "run") as buffer,
        ):
            await promoted.replicaof("127.0.0.1", stream.port)

            async def fail_over() -> None:
                """The address leads to the replica, which is promoted a moment later."""
                primary.kill()
                address.target = path_of(replica)
                address.cut()
                await asyncio.sleep(0.1)
                await promoted.replicaof("NO", "ONE")

            await _lose_a_step(buffer, stream, fail_over)


async def _lose_a_step(
    buffer: TrajectoryBuffer, stream: Forwarder, fail_over: Callable[[], Coroutine[None, None, None]]
) -> None:
    await begin(buffer)
    claim = await buffer.claim_trainer()
    samples = await buffer.lease("p", 6)
    for sample in samples[:4]:
        await finish(buffer, sample)
    await buffer.commit(samples[4].lease, 0, [START])
    (behind,) = await buffer._connection.pipeline(lambda pipe: pipe.wait(1, 10_000))
    assert behind == 1
    # From here on the replica hears nothing: what follows is lost with the primary.
    stream.target = "/nowhere"
    stream.cut()
    first = await buffer.take_step(claim, 1)
    assert isinstance(first, LedgerEntry)
    await buffer.commit(samples[4].lease, 1, [turn(0)])
    # Asked meanwhile: a replica that was not promoted yet refuses writes, and the call waits.
    waiting, _ = await asyncio.gather(buffer.take_step(claim, 2), fail_over())
    assert isinstance(waiting, Waiting)
    assert await buffer.take_step(claim, 1) == first
    with pytest.raises(JournalMismatch, match="the journal holds 1"):
        await buffer.commit(samples[4].lease, 2, [turn(1)])
    await buffer.commit(samples[4].lease, 1, [turn(0), turn(1)], outcome())
    await finish(buffer, samples[5])
    assert (await buffer.snapshot()).trained == 2
