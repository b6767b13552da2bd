#!/bin/sh
# Tests what depends on the versions of Python and Megatron-Core, on every supported Python but the
# one that is named, which `make test` has tested. Closes with pytest's own last line of each.
#
# Each other megatron-core gets the tests that compute with it: those of layouts, of models and of
# what finds a culprit in them. What replicas exchange, frames, data and sampling are mimokit's own.
# A further Python with a megatron-core that is tested already gets the tests that start processes,
# pickle functions, trace, read weights and verify whole runs: those are what a Python changes.

few="tests/cluster --ignore=tests/cluster/test_hosts.py tests/engine/test_megatron_door.py
     tests/experiment/test_verify.py tests/experiment/test_shipped_layouts.py
     tests/experiment/test_runs.py"
all="tests/engine --ignore=tests/engine/data --ignore=tests/engine/frames
     --ignore=tests/engine/inference --ignore=tests/engine/replicas
     --ignore=tests/engine/strategies
     tests/architecture/test_gpt_of_megatron.py tests/cluster/test_failures.py
     tests/cluster/test_lifetime.py tests/experiment/culprit tests/experiment/test_own_modules.py
     tests/experiment/test_runs.py tests/experiment/test_shipped_layouts.py
     tests/experiment/test_verify.py"

megatron_of() {
    sed -n 's/^megatron-core==\([^ ]*\).*/\1/p' "constraints/py$(echo "$1" | tr -d .).txt"
}

there=$(sh make/pythons.sh there)
tested=$(megatron_of "$1")
failed=0
mkdir -p build
: > build/test-versions.txt
for version in $(sh make/pythons.sh supported); do
    [ "$version" != "$1" ] || continue
    megatron=$(megatron_of "$version")
    what="Python $version, megatron-core $megatron"
    if ! echo "$there" | grep -qx "$version"; then
        echo "$what: absent" | tee -a build/test-versions.txt
        continue
    fi
    tests=$all
    case " $tested " in *" $megatron "*) tests=$few ;; esac
    tested="$tested $megatron"
    echo "$what: $tests"
    # shellcheck disable=SC2086
    { ".venv-$version/bin/python" -m pytest --numprocesses 2 $tests; echo $? > build/test-versions.status; } |
        tee build/test-versions.log
    [ "$(cat build/test-versions.status)" = 0 ] || failed=1
    { echo "$what:"; tail -n 1 build/test-versions.log; } >> build/test-versions.txt
done
cat build/test-versions.txt
exit $failed
