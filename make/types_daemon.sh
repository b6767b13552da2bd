#!/bin/sh
# types_daemon.sh BIN: checks types by the daemon of mypy, which looks only at what has changed and
# ends after an hour without work. Where it does not work, types.sh checks.
mkdir -p build
said=$("$1/dmypy" --status-file build/dmypy.json run --timeout 3600 2>&1)
status=$?
case $status:$said in
0:*) ;;
1:*error:*) echo "$said" ;;
*)
    echo "The daemon of mypy does not work; mypy checks without it."
    exec sh "$(dirname "$0")/types.sh" "$1/mypy"
    ;;
esac
exit $status
