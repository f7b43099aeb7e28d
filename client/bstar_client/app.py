"""Several services in one program: what it declares, and what serves it.

    app = App(["tcp://node1:5555", "tcp://node2:5555"])

    @app.service("price", threads=4)
    def price(request: Request) -> bytes: ...

    @app.service("stock")
    async def stock(request: Request) -> bytes: ...

    app.run()

``bstar run MODULE:app`` serves it in several processes. A function is served by ``Worker``, an async one by
``AsyncWorker``; all async ones share one event loop. The services of a pair share one ZeroMQ context; each
has its own connection to each node (docs/adr/0040-one-context.md).

The order of a life: resources and then ``startup`` functions as they are declared, the workers, until a stop
or a worker's error; then the workers drain, ``shutdown`` functions and resources end in reverse order.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin

import msgspec
import zmq

from bstar.errors import ClosedError, ConfigurationError, LocalProtocolError, WorkerError
from bstar.fleet import Fleet, Pair
from bstar.net.io_threads import new_context
from bstar.net.stop_signals import on_stop_signals
from bstar.security import Security
from bstar_client.aio.worker import AsyncWorker
from bstar_client.arguments.bodies import to_name
from bstar_client.arguments.checks import name_of_handler
from bstar_client.arguments.environment import NOT_GIVEN, Given, or_environment
from bstar_client.arguments.settings import LinkSettings
from bstar_client.core.figures import WorkerFigures
from bstar_client.journal import JournalPlace
from bstar_client.sync.worker import Worker
from bstar_client.workers.describe import KINDS, first_line
from bstar_client.workers.failures import text_of
from bstar_client.workers.handlers import Request, WorkerHooks
from bstar_client.workers.replies import ReplyStore
from bstar_client.workers.typed import bind, resolved

# How long after a stop the workers are asked once more.
_AGAIN_S = 0.2
# How long the last messages of ended workers may take to leave.
_TERM_S = 1.0
# How long after a second signal each step in the event loop may take: a handler may block the loop.
_AT_ONCE_S = 1.0

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Service(msgspec.Struct, frozen=True):
    """One service of an App: the function that handles its requests, and the arguments of its worker."""

    name: str
    function: Callable[..., Any]
    options: dict[str, Any]

    @property
    def is_async(self) -> bool:
        """True if the event loop runs it."""
        return _is_async(self.function)


class App:
    """The services of one program. The arguments are those of ``Worker``, for all services.

    Without ``endpoints`` they and the keys come from BSTAR_… variables when it runs.
    """

    def __init__(
        self,
        endpoints: Given = NOT_GIVEN,
        *,
        pins: Mapping[str, str] | None = None,
        link: LinkSettings | None = None,
        security: Security | None = None,
        journal: JournalPlace | None = None,
    ) -> None:
        self._shared: dict[str, Any] = {
            "endpoints": endpoints, "pins": pins, "link": link, "security": security, "journal": journal
        }  # fmt: skip
        self.services: dict[str, Service] = {}
        self._startup: list[Callable[..., Any]] = []
        self._shutdown: list[Callable[..., Any]] = []
        self._resources: dict[type, Callable[..., Any]] = {}
        # The forms of each: False has that for functions, True that for async ones.
        self._around: list[dict[bool, Callable[..., Any]]] = []
        self._life: Life | None = None
        self._over = threading.Event()

    # --- what the program declares --------------------------------------------------------------------------

    def service(
        self,
        name: str,
        *,
        threads: int | None = None,
        credit: int | None = None,
        timeout: float | None = None,
        dedupe: ReplyStore | None = None,
        hooks: WorkerHooks | None = None,
        version: str = "",
        description: str | None = None,
    ) -> Callable[[_Function], _Function]:
        """Decorator: the function handles the requests of service ``name``.

        Its first parameter is the request, or a typed body, which a second one of type Request may follow. A
        further parameter whose type is that of a ``resource`` gets the resource. ``timeout`` is
        ``handler_timeout_s`` of ``Worker``, in seconds; the others are its own. ``threads`` is for functions
        that are not async.
        """
        given: object = name
        if not isinstance(given, str) or not given:
            raise ConfigurationError(f'@app.service takes a name, @app.service("price"), not {name!r}')
        if name in self.services:
            raise ConfigurationError(f"service {name!r} is declared twice")

        def declare(function: _Function) -> _Function:
            self._check(function, f"service {name!r}")
            about = first_line(function) if description is None else description
            options = {
                "credit": credit, "handler_timeout_s": timeout, "dedupe": dedupe, "hooks": hooks,
                "version": version, "description": about,
            }  # fmt: skip
            if _is_async(function):
                if threads is not None:
                    raise ConfigurationError(f"service {name!r} is async: it has no threads, but credit")
            else:
                options["threads"] = threads
            self.services[name] = Service(name, function, options)
            return function

        return declare

    def resource(self, function: _Function) -> _Function:
        """Decorator: a generator function that yields one value, which handlers get by its type.

        The annotation of its result names the type: ``Iterator[Database]``. What follows the ``yield`` runs
        at the end. An async one lives in one task of the event loop, and async functions alone can take its
        value. It may take the resources declared before it.
        """
        self._check(function, "a resource")
        kind = _yielded(function)
        if kind in self._resources:
            raise ConfigurationError(f"two resources are of type {kind.__qualname__}")
        self._resources[kind] = function
        return function

    def startup(self, function: _Function) -> _Function:
        """Decorator: call it before the services begin, with the resources that it takes."""
        self._check(function, "startup")
        self._startup.append(function)
        return function

    def shutdown(self, function: _Function) -> _Function:
        """Decorator: call it after the services have ended, with the resources that it takes."""
        self._check(function, "shutdown")
        self._shutdown.append(function)
        return function

    def around(self, function: _Function, other: Callable[..., Any] | None = None) -> _Function:
        """Decorator: call it in place of each handler, with the request and a function that goes on.

        ``def log(request, call): return call(request)`` is for functions, ``async def`` with ``await
        call(request)`` for async ones. An App with services of both kinds needs both forms:
        ``app.around(log, log_async)``. It does not start while a service would run without its form.

        What it returns or raises is the answer. For a handler that yields, ``call`` returns the iterator of
        its parts, and so may it. The first one declared is the outermost.
        """
        forms: dict[bool, Callable[..., Any]] = {}
        for form in (function,) if other is None else (function, other):
            self._check(form, "around")
            name = name_of_handler(form)
            try:
                inspect.signature(form).bind(None, None)
            except TypeError as error:
                raise ConfigurationError(
                    f"{name} gets the request and a function that goes on: {error}"
                ) from None
            if _is_async(form) in forms:
                first, kind = name_of_handler(function), "async" if _is_async(form) else "not async"
                raise ConfigurationError(f"{first} and {name} are both {kind}: give a form of each kind")
            forms[_is_async(form)] = form
        self._around.append(forms)
        return function

    def _check(self, function: object, what: str) -> None:
        if not callable(function):
            raise ConfigurationError(f"{what}: a function is declared, not {function!r}")
        if self._life is not None:
            raise ConfigurationError(f"{what} is declared too late: the App runs")

    # --- its life -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or ``stop()``; a second signal stops at once.

        Raises WorkerError if too many handlers of a service are stuck, and what a resource or a ``startup``
        function raises.
        """
        if self._life is not None:
            raise ClosedError("an App runs once")
        if not self.services:
            raise ConfigurationError("the App has no services: declare one with @app.service(NAME)")
        self._life = Life(self, over=self._over)
        self._life.run()

    def stop(self) -> None:
        """Ask it to drain and end; returns at once. Any thread may call it."""
        self._over.set()

    def figures(self) -> list[WorkerFigures]:
        """Each service at this moment. Any thread may ask."""
        return [] if self._life is None else [worker.figures() for worker in list(self._life.workers)]


class Life:
    """One run of an App, until ``over`` is set. ``resources``: values that stand in for those of the App."""

    def __init__(
        self, app: App, resources: Mapping[type, Any] | None = None, *, over: threading.Event | None = None
    ) -> None:
        self.app = app
        self._given = dict(resources or {})
        for kind in self._given:
            if kind not in app._resources:  # noqa: SLF001 - its own App's
                known = ", ".join(each.__qualname__ for each in app._resources) or "none"  # noqa: SLF001
                name = getattr(kind, "__qualname__", repr(kind))
                raise ConfigurationError(f"the App has no resource of type {name}; it has: {known}")
        self.over = over or threading.Event()
        self.workers: list[Worker | AsyncWorker] = []
        self._values: dict[type, Any] = {}
        self._async_kinds: set[type] = set()
        self._errors: list[BaseException] = []
        self._is_signalled = False
        self._loop: ThreadLoop | None = None

    def run(self) -> None:
        """All of it."""
        try:
            with on_stop_signals(self._on_signal), ExitStack() as stack:
                try:
                    self._begin(stack)
                except BaseException as error:  # noqa: BLE001 - raised below: resources end as ever
                    self._errors.append(error)
        except BaseException as error:  # noqa: BLE001 - raised below, unless it follows from the first
            self._errors.append(error)
        if self._errors:
            first, *others = self._errors
            for other in others:
                first.add_note(f"then: {text_of(other)}")
            raise first

    def _begin(self, stack: ExitStack) -> None:
        self._loop = loop = stack.enter_context(_event_loop())
        self.open(loop, stack)
        self._serve(loop)

    def open(self, loop: "Loop", stack: ExitStack) -> None:
        """Make the resources and call the startup functions; ``stack`` ends what they began."""
        app = self.app
        self._check_around()
        for kind, function in app._resources.items():  # noqa: SLF001 - its own App's
            self._enter(kind, function, loop, stack)
        for function in app._shutdown:  # noqa: SLF001
            stack.callback(self._call, function, loop)
        for function in app._startup:  # noqa: SLF001
            self._call(function, loop)

    def _check_around(self) -> None:
        """ConfigurationError if a service would run without one of them, such as a check of rights."""
        for forms in self.app._around:  # noqa: SLF001 - its own App's
            bare = [repr(each.name) for each in self.app.services.values() if each.is_async not in forms]
            if bare:
                ((is_async, function),) = forms.items()
                name, services = name_of_handler(function), ", ".join(bare)
                form, other = ("async def", "def") if is_async else ("def", "async def")
                raise ConfigurationError(
                    f"{name} ({form}) does not go around services with {other}: {services}; write its other "
                    f"form and declare both: app.around({name}, OTHER)"
                )

    @property
    def is_async(self) -> bool:
        """True if ``open`` needs a loop."""
        app = self.app
        return any(map(_is_async, (*app._resources.values(), *app._startup, *app._shutdown)))  # noqa: SLF001

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_signalled:
            if self._loop is not None:
                self._loop.patience_s = _AT_ONCE_S
            raise KeyboardInterrupt
        self._is_signalled = True
        self.over.set()

    # --- resources ------------------------------------------------------------------------------------------

    def _enter(self, kind: type, function: Callable[..., Any], loop: "Loop", stack: ExitStack) -> None:
        is_async = _is_async(function)
        if is_async:
            self._async_kinds.add(kind)
        if kind in self._given:
            self._values[kind] = self._given[kind]
            return
        given = self._taken(function, is_async=is_async)
        opening: Callable[[], Any]
        closing: Callable[[], object]
        if is_async:
            held = _Held(asynccontextmanager(function)(**given), function.__qualname__, self.over)
            opening, closing = lambda: loop.run(held.open()), lambda: loop.run(held.close())
        else:
            manager = contextmanager(function)(**given)
            opening, closing = manager.__enter__, lambda: manager.__exit__(None, None, None)
        self._values[kind] = _once(opening, function)
        # No context of the stack: what another one raises is not thrown into it, so its end runs.
        stack.callback(_once, closing, function)

    def _taken(self, function: Callable[..., Any], *, is_async: bool, first: int = 0) -> dict[str, Any]:
        """The resources that the function's parameters take, by name, from parameter ``first`` on."""
        parameters = list(inspect.signature(function).parameters.values())[first:]
        taken = {}
        for place, parameter in enumerate(parameters):
            name, kind = parameter.name, _kind_of(parameter.annotation, function)
            if not isinstance(kind, type) or kind not in self._values:
                if not (first and place == 0 and kind is Request):
                    self._check_parameter(function, parameter, kind)
                continue
            if kind in self._async_kinds and not is_async:
                raise ConfigurationError(
                    f"{function.__qualname__} takes the async resource {kind.__qualname__}: make it async"
                )
            taken[name] = self._values[kind]
        return taken

    def _check_parameter(
        self, function: Callable[..., Any], parameter: inspect.Parameter, kind: object
    ) -> None:
        """Raise ConfigurationError if nothing would be given to this parameter."""
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            return
        known = ", ".join(each.__qualname__ for each in self._values) or "none"
        named = "no annotation" if kind is None else f"type {getattr(kind, '__qualname__', kind)}"
        raise ConfigurationError(
            f"{function.__qualname__}: parameter {parameter.name!r} has {named}, and no resource before it "
            f"is of that type; those that are: {known}"
        )

    def _call(self, function: Callable[..., Any], loop: "Loop") -> None:
        is_async = _is_async(function)
        result = function(**self._taken(function, is_async=is_async))
        if is_async:
            loop.run(result)

    # --- services -------------------------------------------------------------------------------------------

    def handler(self, service: Service) -> Callable[[Request], Any]:
        """What a worker calls: the function with its resources, within what is ``around`` it."""
        function = service.function
        given = self._taken(function, is_async=service.is_async, first=1)
        if given:
            function = _without(function, given)
        # What is around it gets the request, and the reply as it is sent.
        function = bind(function)
        kinds = getattr(function, KINDS, {})
        around = [forms[service.is_async] for forms in self.app._around]  # noqa: SLF001
        if not around:
            return function
        if inspect.isasyncgenfunction(service.function):
            function = _around_stream(function, around)
        else:
            for each in reversed(around):
                function = functools.partial(_go_around, each, function)
            function = _as_async(function) if service.is_async else function
        setattr(function, KINDS, kinds)
        return function

    def _serve(self, loop: "ThreadLoop") -> None:
        """Until it is over. Every worker has ended then."""
        threads = []
        contexts: dict[Pair, zmq.Context[zmq.Socket[bytes]]] = {}
        try:
            fleet, shared = self._shared()
            for service in self.app.services.values():
                self.workers.append(self._worker(service, fleet, shared, contexts))
            for worker in self.workers:
                serve = (
                    worker.run if isinstance(worker, Worker) else functools.partial(_run_async, worker, loop)
                )
                # A daemon: after a second signal the process does not wait for what it drains.
                thread = threading.Thread(target=self._until_end, args=(serve,), daemon=True)
                threads.append(thread)
                thread.start()
            self.over.wait()
        finally:
            for thread in threads:
                # Again and again: a worker that has not begun yet is not stopped.
                while thread.is_alive():
                    self._stop_workers(loop)
                    thread.join(_AGAIN_S)
            for context in contexts.values():
                # In a thread: the sockets of a worker whose hook does not return stay open.
                thread = threading.Thread(target=context.term, daemon=True)
                thread.start()
                thread.join(_TERM_S)

    def _shared(self) -> tuple[Fleet, dict[str, Any]]:
        """The fleet, and the options of all services; the environment is read once."""
        shared = dict(self.app._shared)  # noqa: SLF001 - its own App's
        try:
            endpoints, shared["security"] = or_environment(shared.pop("endpoints"), shared["security"])
            return Fleet.of(endpoints, shared.pop("pins")), shared
        except TypeError as error:
            raise ConfigurationError(str(error)) from error

    def _worker(
        self,
        service: Service,
        fleet: Fleet,
        shared: Mapping[str, Any],
        contexts: dict[Pair, "zmq.Context[zmq.Socket[bytes]]"],
    ) -> Worker | AsyncWorker:
        """The worker of a service. ``contexts``: those of the pairs that have services."""
        options = {**shared, **service.options}
        kind: type[Worker | AsyncWorker] = AsyncWorker if service.is_async else Worker
        try:
            pair = fleet.pair_of(to_name(service.name))
            if pair not in contexts:
                contexts[pair] = new_context(len(pair.endpoints), owners=len(self.app.services))
            worker = kind(fleet, service.name, self.handler(service), context=contexts[pair], **options)
        except (TypeError, ConfigurationError, LocalProtocolError) as error:
            text = str(error).replace("handler_timeout_s", "timeout")
            raise ConfigurationError(f"service {service.name!r}: {text}") from error
        worker.time_handlers()
        return worker

    def _stop_workers(self, loop: "ThreadLoop") -> None:
        for worker in self.workers:
            if isinstance(worker, Worker):
                worker.stop()
            else:
                loop.call(worker.stop)

    def _until_end(self, serve: Callable[[], None]) -> None:
        """Serve one service. Its error ends all of them."""
        try:
            serve()
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._errors.append(error)
        finally:
            self.over.set()


class _Held:
    """An async resource. One task opens, holds and closes it.

    Its code may so hold what belongs to a task: a TaskGroup, a cancel scope, the token of a ContextVar. If it
    ends before ``close``, it ends the App, as a TaskGroup does whose task failed.
    """

    def __init__(self, manager: AbstractAsyncContextManager[Any], name: str, over: threading.Event) -> None:
        self._manager, self._name, self._app_over = manager, name, over
        self._closing = asyncio.Event()

    async def open(self) -> Any:  # Any: what it yields
        """Its value."""
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(opened))
        await asyncio.wait((opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        return opened.result() if opened.done() else self._task.result()

    async def _hold(self, opened: asyncio.Future[Any]) -> None:
        is_early = False
        async with self._manager as value:
            opened.set_result(value)
            try:
                await self._closing.wait()
            except asyncio.CancelledError:
                is_early = True
                self._app_over.set()
                raise
        if is_early:
            raise WorkerError(f"resource {self._name} ended before its App")

    async def close(self) -> None:
        """Run what follows its ``yield``; raises what that raises."""
        self._closing.set()
        await self._task


class Loop(Protocol):
    """Where the async functions of an App run."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # Any: whatever it returns
        """Run it there and wait for its result."""


class ThreadLoop:
    """An event loop that runs in another thread. ``patience_s`` bounds each wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.patience_s: float | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # Any: whatever it returns
        """Run it there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self.patience_s)

    def call(self, function: Callable[[], object]) -> None:
        """Call it there soon."""
        self._loop.call_soon_threadsafe(function)


@contextmanager
def _event_loop() -> Iterator[ThreadLoop]:
    """The loop of all that is async in one App. It runs also if nothing is."""
    # With a factory it is not made the loop of this thread. At the end it cancels the tasks that are left.
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    # A daemon: after a second signal the process does not wait for what blocks it.
    thread = threading.Thread(target=loop.run_forever, name="bstar-loop", daemon=True)
    thread.start()
    made = ThreadLoop(loop)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(made.patience_s)
        if not thread.is_alive():
            runner.close()


def _run_async(worker: AsyncWorker, loop: ThreadLoop) -> None:
    with suppress(CancelledError):  # it was stopped before it had begun
        loop.run(worker.run())


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _kind_of(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type that the annotation of a parameter or of the result names; None without one."""
    if annotation is inspect.Parameter.empty:
        return None
    try:
        kind = resolved(annotation, function)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _yielded(function: Callable[..., Any]) -> type:
    """The type of what a generator function yields, by the annotation of its result."""
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise ConfigurationError(f"{function.__qualname__}: a resource is a function that yields one value")
    arguments = get_args(_kind_of(inspect.signature(function).return_annotation, function))
    if not arguments or not isinstance(arguments[0], type):
        raise ConfigurationError(
            f"{function.__qualname__}: annotate what it yields, for example -> Iterator[Database]"
        )
    return arguments[0]


def _once(step: Callable[[], Any], function: Callable[..., Any]) -> Any:  # Any: what the resource yields
    """Open or close a resource. ConfigurationError if it yields another number of values than one."""
    try:
        return step()
    except RuntimeError as error:
        count = {"generator didn't yield": "none", "generator didn't stop": "several"}.get(str(error))
        if count is None:
            raise
        raise ConfigurationError(
            f"resource {function.__qualname__} yields {count}: yield one value"
        ) from None


def _without(function: Callable[..., Any], given: dict[str, Any]) -> Callable[..., Any]:
    """The function with these parameters given, and without them in its signature."""
    bound = functools.partial(function, **given)
    signature = inspect.signature(function)
    left = [each for name, each in signature.parameters.items() if name not in given]
    bound.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # inspect reads it
    return bound


def _go_around(outer: Callable[..., Any], inner: Callable[[Request], Any], request: Request) -> Any:
    return outer(request, inner)


def _as_async(function: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Coroutine[Any, Any, Any]]:
    async def handle(request: Request) -> Any:  # Any: the handler's reply
        return await function(request)

    return handle


def _around_stream(
    function: Callable[[Request], AsyncIterator[Any]], around: list[Callable[..., Any]]
) -> Callable[[Request], AsyncIterator[Any]]:
    """``call`` returns the iterator of parts, and an ``around`` may return another."""

    async def begin(request: Request) -> AsyncIterator[Any]:
        return function(request)

    call: Callable[..., Any] = begin
    for each in reversed(around):
        call = functools.partial(_go_around, each, call)

    async def handle(request: Request) -> AsyncIterator[Any]:
        async for part in await call(request):
            yield part

    return handle
