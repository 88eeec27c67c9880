"""The part of asyncio's event loop that the simulation does not support: each call raises."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(f"not in a simulation: {name}")


class Refusing(asyncio.AbstractEventLoop):
    """Raises RuntimeError for every call that would use real sockets, threads, signals, pipes or processes."""

    def run_forever(self, *args: Any, **options: Any) -> Any:
        _refuse("run_forever")

    def run_until_complete(self, *args: Any, **options: Any) -> Any:
        _refuse("run_until_complete")

    def stop(self, *args: Any, **options: Any) -> Any:
        _refuse("stop")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        _refuse("create_datagram_endpoint")

    async def connect_accepted_socket(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_accepted_socket")

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        _refuse("create_unix_connection")

    async def create_unix_server(self, *args: Any, **options: Any) -> Any:
        _refuse("create_unix_server")

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        _refuse("start_tls")

    async def sendfile(self, *args: Any, **options: Any) -> Any:
        _refuse("sendfile")

    async def sock_recv(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_recv")

    async def sock_recv_into(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_recv_into")

    async def sock_recvfrom(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_recvfrom")

    async def sock_recvfrom_into(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_recvfrom_into")

    async def sock_sendto(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_sendto")

    async def sock_sendall(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_sendall")

    async def sock_connect(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_connect")

    async def sock_accept(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_accept")

    async def sock_sendfile(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_sendfile")

    async def getnameinfo(self, *args: Any, **options: Any) -> Any:
        _refuse("getnameinfo")

    async def connect_read_pipe(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_read_pipe")

    async def connect_write_pipe(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_write_pipe")

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        _refuse("subprocess_shell")

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        _refuse("subprocess_exec")

    def add_signal_handler(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _refuse("add_signal_handler")

    def remove_signal_handler(self, *args: Any, **options: Any) -> Any:
        _refuse("remove_signal_handler")

    def add_reader(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _refuse("add_reader")

    def remove_reader(self, *args: Any, **options: Any) -> Any:
        _refuse("remove_reader")

    def add_writer(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _refuse("add_writer")

    def remove_writer(self, *args: Any, **options: Any) -> Any:
        _refuse("remove_writer")

    def set_default_executor(self, *args: Any, **options: Any) -> Any:
        _refuse("set_default_executor")

    def set_task_factory(self, *args: Any, **options: Any) -> Any:
        _refuse("set_task_factory")

    def get_task_factory(self, *args: Any, **options: Any) -> Any:
        _refuse("get_task_factory")

    def set_exception_handler(self, *args: Any, **options: Any) -> Any:
        _refuse("set_exception_handler")

    def get_exception_handler(self, *args: Any, **options: Any) -> Any:
        _refuse("get_exception_handler")

    def set_debug(self, *args: Any, **options: Any) -> Any:
        _refuse("set_debug")
