#!/bin/sh
# Tests what depends on the versions of Python and Megatron-Core, on every supported Python but the
# one that is named, which `make test` has tested. Closes with pytest's own last line of each.
#
# Another megatron-core gets the claims, and what compares mimokit's tables with Megatron's classes. A
# further Python with a megatron-core that is tested already gets what a Python changes: processes,
# pickled functions, and a verified layout in each mode. MORE=1 adds rooms of the engine, for a night.

set -f # names of tests have brackets
proved="tests/test_claims.py::test_a_layout_computes_what_one_process_computes"
few="tests/cluster/test_running.py tests/cluster/test_streaming.py
     tests/engine/test_megatron_door.py $proved[tensor-parallelism-homogeneous]
     $proved[pipelines-colocated] $proved[expert-parallelism-heterogeneous]"
all="tests/test_claims.py tests/cluster/test_running.py tests/engine/test_megatron_door.py
     tests/architecture/test_gpt_of_megatron.py tests/architecture/test_layer_work_of_megatron.py
     tests/architecture/test_parameters_of_megatron.py"
[ -z "${MORE:-}" ] || all="$all tests/engine/models tests/engine/parallel tests/engine/pipeline
     tests/engine/user_loop tests/engine/verify tests/experiment/culprit"

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
