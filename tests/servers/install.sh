#!/usr/bin/env bash
# Installs what the tests start and pip does not bring, when it is missing and apt may be used:
# the database servers, Java for Spark, Maven for Kafka and S3. `install.sh java` is for Java alone.
# What stands in the environment makes a server needless: OUTBOX_TEST_POSTGRESQL_URL, OUTBOX_TEST_MARIADB_URL,
# OUTBOX_TEST_REDIS_URL, OUTBOX_TEST_KAFKA, OUTBOX_TEST_S3_URL.
set -euo pipefail

wanted="${1:-all}"
packages=()
if ! command -v java >/dev/null && [ ! -x "${JAVA_HOME:-}/bin/java" ]; then
    packages+=(openjdk-17-jre-headless)
fi
if [ "$wanted" = all ] && [ -z "${OUTBOX_TEST_POSTGRESQL_URL:-}" ] && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null; then
    packages+=(postgresql)
fi
if [ "$wanted" = all ] && [ -z "${OUTBOX_TEST_MARIADB_URL:-}" ] && ! PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null; then
    packages+=(mariadb-server)
fi
if [ "$wanted" = all ] && [ -z "${OUTBOX_TEST_REDIS_URL:-}" ] && ! command -v redis-server >/dev/null && ! command -v valkey-server >/dev/null; then
    packages+=(redis-server)
fi
# Maven brings the Kafka broker and the S3 server.
if [ "$wanted" = all ] && [ -z "${OUTBOX_TEST_KAFKA:-}" -o -z "${OUTBOX_TEST_S3_URL:-}" ] && ! command -v mvn >/dev/null; then
    packages+=(maven)
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
# Newer releases of Debian have no Java 17; Spark runs on these too.
for java in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
    apt-cache show "$java" >/dev/null 2>&1 && break
done
packages=("${packages[@]/openjdk-17-jre-headless/$java}")
# Only the programs are wanted: the tests start servers of their own.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
