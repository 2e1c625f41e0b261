#!/usr/bin/env bash
# Installs the database servers that the tests start, when they are missing and apt may be used.
# A URL in the environment (OUTBOX_TEST_POSTGRESQL_URL, OUTBOX_TEST_MARIADB_URL) makes one needless.
set -euo pipefail

packages=()
if [ -z "${OUTBOX_TEST_POSTGRESQL_URL:-}" ] && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null; then
    packages+=(postgresql)
fi
if [ -z "${OUTBOX_TEST_MARIADB_URL:-}" ] && ! PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null; then
    packages+=(mariadb-server)
fi
[ ${#packages[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "missing: ${packages[*]}. Install them with your package manager, or set OUTBOX_TEST_*_URL; the tests say what they lack."
    exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "missing: ${packages[*]}. Run: sudo apt-get install ${packages[*]}"
        exit 0
    fi
    as_root=(sudo)
fi
echo "installing ${packages[*]}"
"${as_root[@]}" apt-get update -qq
# Only the programs are wanted: the tests start servers of their own.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
