"""Who may read a process's pages: the certificate of its TLS, and the secrets that a request must show.

A line of ``http.tokens`` is a token (``Authorization: Bearer``, RFC 6750) or USER:PASSWORD (``Basic``, RFC
7617). Of each only its SHA-256 is kept, which is safe because a secret is long. No log, error, status or
metric shows a secret. Both kinds of files are read again when they change; while they cannot be used, what
they said before holds.
"""

import binascii
import hashlib
import hmac
import logging
import re
import ssl
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NoReturn, Protocol

from bstar.errors import ConfigurationError
from bstar.security.files import WatchedFiles, explained, read_private, read_small

_log = logging.getLogger("bstar.http")

# So that nobody guesses one, neither here nor from its digest.
SECRET_CHARS_MIN = 16
# A request is compared with all of them.
SECRETS_MAX = 100
_TOKENS_BYTES_MAX = 64 * 1024
# A chain of certificates; a key.
_PEM_BYTES_MAX = 1 << 20

_BEARER = "Bearer"
_BASIC = "Basic"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # b64token

Reason = Literal["no-credentials", "wrong-credentials", "no-tls", "tls-failed"]
"""Why a request got no page: a closed set, because it is a metric's label."""


class Credentials:
    """The secrets of a tokens file, as digests. ``schemes`` are those by which they can be shown."""

    def __init__(self, secrets: Iterable[tuple[str, bytes]]) -> None:
        listed = list(secrets)
        self.schemes = tuple(dict.fromkeys(scheme for scheme, _ in listed))
        self._digests = tuple({_digest(scheme, secret) for scheme, secret in listed})

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, authorization: str) -> bool:
        """True if the value of an Authorization header shows one of them."""
        scheme, _, text = authorization.strip().partition(" ")
        shown = text.strip().encode("latin-1", "replace")
        if scheme.lower() == _BASIC.lower():
            try:
                shown = b64decode(shown, validate=True)
            except binascii.Error:
                return False
        digest = _digest(scheme, shown)
        # All of them, each in the same time: how long it takes tells nothing.
        return sum(hmac.compare_digest(digest, each) for each in self._digests) > 0


def _digest(scheme: str, secret: bytes) -> bytes:
    return hashlib.sha256(scheme.lower().encode("latin-1", "replace") + b" " + secret).digest()


@explained("http.tokens")
def read_credentials(path: str) -> Credentials:
    """Read a tokens file. Raises ConfigurationError with the line's number; no error shows the line."""
    try:
        text = read_private(path, _TOKENS_BYTES_MAX, "file of tokens").decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is no text in UTF-8") from None
    secrets: list[tuple[str, bytes]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        user, is_basic, password = entry.partition(":")
        is_right = user and entry.isprintable() if is_basic else _TOKEN.fullmatch(entry)
        if not is_right:
            raise ConfigurationError(
                f"{path}:{number}: is neither a token (letters, digits and ._~+/-) nor USER:PASSWORD"
            )
        if len(password if is_basic else entry) < SECRET_CHARS_MIN:
            raise ConfigurationError(
                f"{path}:{number}: a token or password has {SECRET_CHARS_MIN} characters or more: openssl "
                "rand -hex 32 makes one"
            )
        secrets.append((_BASIC if is_basic else _BEARER, entry.encode()))
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise ConfigurationError(
            f"{path}: holds {len(secrets)} tokens, not 1 to {SECRETS_MAX}: write each in a line of its own; "
            "openssl rand -hex 32 makes one"
        )
    return Credentials(secrets)


def read_tls(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate. Raises ConfigurationError that names the file that is wrong."""
    with explained("http.certificate"):
        _check_pem(certificate, read_small(certificate, _PEM_BYTES_MAX)[0], "CERTIFICATE")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    with explained("http.key"):
        _check_pem(key, read_private(key, _PEM_BYTES_MAX, "private key"), "PRIVATE KEY")
        try:
            context.load_cert_chain(certificate, key, password=partial(_refuse_pass_phrase, key))
        except OSError as error:  # ssl.SSLError is one
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            if reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(f"{key}: is not the key of the certificate {certificate}") from error
            raise ConfigurationError(
                f"{key}: OpenSSL cannot use it with the certificate {certificate}: "
                f"{reason or 'one of the two is broken'}"
            ) from error
    return context


def _check_pem(path: str, octets: bytes, what: str) -> None:
    if not re.search(rb"^-----BEGIN ([A-Z]+ )*%b-----" % what.encode(), octets, re.MULTILINE):
        raise ConfigurationError(f"{path}: holds no {what} in PEM (-----BEGIN {what}-----)")


def _refuse_pass_phrase(key: str) -> NoReturn:
    raise ConfigurationError(
        f"{key}: has a pass phrase, for which a server cannot ask: openssl pkey -in {key} -out NEW removes it"
    )


class HttpFiles(Protocol):
    """The paths of a certificate and its key, and of a file of tokens; None for those that are not used."""

    @property
    def certificate(self) -> str | None:
        """PEM, with the chain."""

    @property
    def key(self) -> str | None:
        """PEM, without a pass phrase."""

    @property
    def tokens(self) -> str | None:
        """A secret in each line."""


class HttpAccess:
    """The certificate and the credentials of one endpoint; it may have neither.

    Threads share it; ``refresh`` is for one of them. Raises ConfigurationError if a file cannot be used.
    """

    def __init__(self, settings: HttpFiles) -> None:
        self._tls: WatchedFiles[ssl.SSLContext] | None = None
        if settings.certificate is not None and settings.key is not None:
            files = (settings.certificate, settings.key)
            self._tls = WatchedFiles("the HTTP endpoint's certificate", files, partial(read_tls, *files))
        self._credentials: WatchedFiles[Credentials] | None = None
        if settings.tokens is not None:
            path = settings.tokens
            self._credentials = WatchedFiles(
                "the HTTP endpoint's file of tokens", (path,), partial(read_credentials, path)
            )
        self._lock = threading.Lock()
        self._refusals: Counter[str] = Counter()
        self._logged: set[Reason] = set()

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What a new connection uses; None for plain HTTP."""
        return None if self._tls is None else self._tls.value

    @property
    def challenges(self) -> tuple[str, ...]:
        """The values of WWW-Authenticate: the schemes by which something in the file can be shown."""
        schemes = () if self._credentials is None else self._credentials.value.schemes
        return tuple(
            f'{scheme} realm="bstar", charset="UTF-8"' if scheme == _BASIC else f'{scheme} realm="bstar"'
            for scheme in schemes
        )

    def judge(self, authorization: Sequence[str]) -> Reason | None:
        """Why a request with these Authorization headers may not read what is not for everybody."""
        if self._credentials is None:
            return None
        if not authorization:
            return "no-credentials"
        # Of two headers, a proxy may have judged the other one.
        is_listed = len(authorization) == 1 and self._credentials.value.match(authorization[0])
        return None if is_listed else "wrong-credentials"

    def refuse(self, reason: Reason, address: str, detail: str = "") -> None:
        """Count a request that gets no page. The first of each reason is logged, and again after a change."""
        with self._lock:
            self._refusals[reason] += 1
            is_first = reason not in self._logged
            self._logged.add(reason)
        if is_first:
            text = "refused an HTTP request from %s: %s%s; the next ones are only counted"
            _log.warning(text, address, reason, f" ({detail})" if detail else "")

    def refresh(self) -> None:
        """Read the files that have changed."""
        for files in (self._tls, self._credentials):
            if files is not None and files.refresh():
                _log.info("%s was read again", files.name)
                with self._lock:
                    self._logged.clear()

    @property
    def credentials(self) -> int:
        """How many secrets are listed; 0: none is asked for."""
        return 0 if self._credentials is None else len(self._credentials.value)

    @property
    def refusals(self) -> dict[str, int]:
        """Requests without a page, by reason."""
        with self._lock:
            return dict(self._refusals)

    @property
    def error(self) -> str:
        """Why a file that changed could not be read; "" if nothing is wrong."""
        errors = [files.error for files in (self._tls, self._credentials) if files is not None]
        return "; ".join(filter(None, errors))
