#!/bin/sh
# The service "keys" of docker-compose.yml: makes the keys that are not there yet, in /keys, and gives workers and
# clients their own. To let another client in, add a line here, its name to the loop, a volume there, and start the
# service again:
#
#   docker compose up keys
#
# Roles are written once. To change them later, edit the line here and the entry of the list, or this ends with 2
# (docs/deployment.md, "Who may do what").
set -eu

root=${1:-}

new() {
    bstar keys new "$@" --if-missing --out "$root/keys"
}

new primary backup --peer
new arbiter --arbiter
new worker --offers echo
# "bstar status" in its container needs the operator.
new load --calls echo --operator

for owner in worker load; do
    # While a key is changed (bstar keys rotate), its owner gets the new one.
    key=$root/keys/$owner.next.key
    [ -e "$key" ] || key=$root/keys/$owner.key
    cp "$key" "$root/$owner-keys/own.key"
    cp "$root/keys/primary.pub" "$root/keys/backup.pub" "$root/$owner-keys/"
done
