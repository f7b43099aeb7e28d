"""``bstar dead``: the durable requests that failed for good."""

import typer

from bstar_cli.options import Nodes, grouped
from bstar_cli.stored import (
    DROP,
    RETRY,
    All,
    AsJson,
    Choice,
    Id,
    Ids,
    Limit,
    Many,
    OfService,
    Ways,
    do,
    print_request,
    print_requests,
)

dead = typer.Typer(
    name="dead",
    no_args_is_help=True,
    add_completion=False,
    help="Dead letters: durable requests that failed for good (docs/durable.md).",
)


@dead.command()
@grouped
def ls(*, nodes: Nodes, choice: Choice, limit: Limit = 1_000, as_json: AsJson = False, ways: Ways) -> None:
    """List dead letters, and why each of them died.

    Exit codes: 0 listed; 2 wrong usage; 3 and 4 no node answered in time.

    Examples:

        bstar dead ls --service price

        bstar dead ls --json | jq -r .text | sort | uniq -c
    """
    with ways.client(nodes) as client:
        print_requests(choice.of(client, "dead"), limit, as_json=as_json)


@dead.command()
@grouped
def show(
    request_id: Id, *, nodes: Nodes, service: OfService = None, as_json: AsJson = False, ways: Ways
) -> None:
    """Show what the store knows of a dead letter.

    Exit codes: 0 shown; 1 the store does not have it; 2 wrong usage; 3 and 4 no node answered in time.

    Examples:

        bstar dead show 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52
    """
    with ways.client(nodes) as client:
        print_request(client.status_of(request_id, service=service), as_json=as_json)


@dead.command()
@grouped
def replay(
    ids: Ids = None,
    *,
    nodes: Nodes,
    choice: Choice,
    everything: All = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """Make dead letters pending again, with all their attempts, when the trouble is over.

    Exit codes: 0 done; 1 not to all of them, because some are no dead letters; 2 wrong usage; 3 and 4 no node
    answered in time.

    Examples:

        bstar dead replay --service price

        bstar dead replay --all
    """
    do(RETRY, nodes, ways, ids, Many(choice=choice, is_all=everything, as_json=as_json))


@dead.command()
@grouped
def drop(
    ids: Ids = None,
    *,
    nodes: Nodes,
    choice: Choice,
    everything: All = False,
    as_json: AsJson = False,
    ways: Ways,
) -> None:
    """Let the store forget dead letters, and nothing else.

    Exit codes: 0 done; 1 the store does not have all of them; 2 wrong usage; 3 and 4 no node answered in
    time.

    Examples:

        bstar dead drop 019a8c3f5b7e4d2a9c1e6f8b0a7d3e52

        bstar dead drop --older 30d
    """
    do(DROP, nodes, ways, ids, Many(choice=choice, is_all=everything, as_json=as_json))
