#!/bin/sh
# Apply a change to the pair of docker-compose.yml, one container at a time, so that one node always serves:
#
#   docker compose build && configs/compose-roll.sh
#   COMPOSE="docker compose -f docker-compose.yml -f my.yml" configs/compose-roll.sh --force-recreate
#
# "docker compose up" alone recreates both nodes at once. Here the node that stands by comes first. Only when it
# stands by again and knows as many workers as the other does the active node follow, which hands over its role as
# it stops. Then the workers, one after the other, and what is left. Arguments go to each "up". Status 1, and the rest
# untouched, if the pair is not whole before a step or not within ROLL_LIMIT_S (120) after it.
set -eu

compose=${COMPOSE:-docker compose}
limit_s=${ROLL_LIMIT_S:-120}
workers=${ROLL_WORKERS-worker-1 worker-2}

# "ACTIVE 2": the state of a node and how many workers it knows; nothing if it does not answer.
look() {
    $compose exec -T "$1" python3 -c 'import json, urllib.request
status = json.load(urllib.request.urlopen("http://127.0.0.1:9401/status", timeout=2))
print(status["pair"]["state"], status["broker"]["workers"])' 2>/dev/null || true
}

state() {
    set -- $(look "$1")
    echo "${1:-}"
}

count() {
    set -- $(look "$1")
    echo "${2:-0}"
}

end() {
    echo "compose-roll: $1" >&2
    exit 1
}

# The first node stands by, the second serves, and the first knows as many workers as it should.
is_pair() {
    [ "$(state "$1")" = PASSIVE ] && [ "$(state "$2")" = ACTIVE ] && [ "$(count "$1")" -ge "$3" ]
}

wait_pair() {
    tries=0
    until is_pair "$1" "$2" "$3"; do
        tries=$((tries + 1))
        [ "$tries" -le "$limit_s" ] || end "$1 does not stand by beside $2 with $3 workers; nothing else was changed"
        sleep 1
    done
}

if [ "$(state primary)" = ACTIVE ]; then active=primary standby=backup; else active=backup standby=primary; fi
known=$(count "$active")
is_pair "$standby" "$active" "$known" || end "the pair is not whole (docker compose exec primary bstar status); nothing was changed"

echo "compose-roll: $standby, which stands by"
$compose up --detach --no-deps "$@" "$standby"
wait_pair "$standby" "$active" "$known"
echo "compose-roll: $active, which hands its role over"
$compose up --detach --no-deps "$@" "$active"
wait_pair "$active" "$standby" "$known"
for worker in $workers; do
    echo "compose-roll: $worker"
    $compose up --detach --no-deps "$@" "$worker"
    wait_pair "$active" "$standby" "$known"
done
echo "compose-roll: what is left"
$compose up --detach
echo "compose-roll: done; $standby serves, $active stands by"
