"""What may come from others or by accident, and the tests in which it does nothing.

It is refused in a sentence, or named, and what is refused leaves no file behind.
"""

from collections.abc import Mapping

_CLUSTER = "tests/cluster"
_NETWORK = f"{_CLUSTER}/test_private_network.py"
_HANDSHAKE = f"{_CLUSTER}/test_handshake.py"
_JOB = f"{_CLUSTER}/test_job.py"
_DAMAGE = "tests/engine/checkpoints/test_damage.py"
_FITS = "tests/extras/strategies/fits/test_one_node.py"
_SWEEPS = "tests/experiment/sweeps/test_experiments.py"
_READERS = "tests/experiment/test_unguarded_readers.py"
_STATE = f"{_CLUSTER}/test_state_folder.py::test_a_folder_that_others_have_prepared_is_refused"
_NO_FILE = f"{_READERS}::test_what_is_no_file_of_that_kind_is_refused_at_once"
_MUTANTS = (
    "tests/test_fuzz.py::test_mutants_are_read_or_refused",
    "tests/test_fuzz.py::test_mutants_that_reached_further_lines_are_read_or_refused",
)

REFUSED: Mapping[str, tuple[str, ...]] = {
    # Doors, and damage of what is read back as numbers.
    "a module of a standard name in the working directory": (
        f"{_CLUSTER}/test_safe_path.py::test_verify_searches_the_working_directory_for_nothing",
        f"{_CLUSTER}/test_safe_path.py::test_engines_find_modules_of_the_user_alone",
    ),
    "a bit, a file or a marker of a checkpoint": (
        f"{_DAMAGE}::test_what_is_not_as_it_was_saved_is_refused_by_all_ranks",
        f"{_DAMAGE}::test_a_run_refuses_a_damaged_checkpoint_in_a_sentence",
    ),
    "a bit of a fit's checkpoint": (f"{_READERS}::test_a_fit_with_one_bit_flipped_is_refused",),
    "a row of a fit's tables": (
        f"{_FITS}::test_damaged_tables_are_refused_before_a_fit_goes_on",
        f"{_FITS}::test_tables_of_a_killed_client_have_a_digest_of_what_it_wrote_before",
    ),
    "a bit of a recording": (f"{_READERS}::test_a_recording_with_one_bit_flipped_is_refused",),
    "a table of a sweep that goes on": (
        f"{_SWEEPS}::test_an_experiment_whose_table_was_damaged_runs_again",
    ),
    "a number of sweep.json": (
        f"{_SWEEPS}::test_a_sweep_with_another_number_is_not_resumed_unless_somebody_says_so",
    ),
    "a folder outside that sweep.json names": (
        f"{_SWEEPS}::test_a_tampered_sweep_leads_nowhere_else",
    ),
    "a bit of what a cluster that stays has recorded": (
        f"{_CLUSTER}/test_staying.py::test_a_damaged_record_is_refused",
    ),
    "a link in a folder of tutorials": ("tests/test_wheel.py::test_tutorials_are_copied_and_kept",),
    # No rank but the world's own.
    "another user at the ports of a local cluster": (
        f"{_NETWORK}::test_ranks_have_a_network_that_nobody_else_reaches",
    ),
    "a process in the place of a rank": (
        f"{_HANDSHAKE}::test_a_rank_without_the_key_is_found_by_every_other",
        f"{_NETWORK}::test_on_the_network_of_the_host_ranks_show_each_other_their_key",
    ),
    "the same, and it says nothing": (
        f"{_NETWORK}::"
        "test_another_user_who_takes_the_place_of_a_rank_and_is_silent_is_named_in_seconds",
    ),
    "an answer that was heard before": (
        f"{_HANDSHAKE}::test_an_answer_of_another_pair_or_of_another_time_is_none",
    ),
    "an address in the store that no rank has written": (
        f"{_CLUSTER}/test_signed_store.py::test_gloo_does_not_connect_to_the_address_of_a_stranger",
    ),
    "a forged length": (
        "tests/engine/test_collectives.py"
        "::test_a_length_that_no_value_has_is_refused_before_memory_is_taken",
    ),
    "connections that are held until descriptors run out": (
        f"{_NETWORK}::test_a_rank_may_open_all_the_descriptors_that_the_system_allows",
        f"{_HANDSHAKE}::test_a_process_that_can_open_nothing_more_says_so",
        f"{_HANDSHAKE}::test_a_broken_connection_says_who_interferes",
    ),
    "a state folder of others, a link, or one that others enter": (_STATE,),
    "a forged task of a job": (
        f"{_JOB}::test_what_ranks_run_is_in_the_folder_whatever_the_store_says",
        f"{_JOB}::test_files_that_others_could_have_written_are_not_read",
    ),
    "a message with another key": (
        f"{_CLUSTER}/test_link.py::test_nothing_is_unpickled_of_a_message_with_another_key",
    ),
    # Readers.
    "a pipe, a device, a folder or deep nesting in place of a file": (
        _NO_FILE,
        "tests/config_files/test_hostile_files.py::test_no_reader_waits_for_what_is_no_file",
        "tests/cli/test_plan_of_model.py::test_what_is_no_file_of_a_model_is_refused_at_once",
        f"{_CLUSTER}/test_connection_file.py::test_what_is_no_connection_file_is_refused_at_once",
        f"{_SWEEPS}::test_a_pipe_and_a_deep_file_are_no_sweep",
    ),
    "another type in a header, an entry, a recording, a trace or a software file": (
        f"{_READERS}::test_a_fit_with_another_header_is_refused",
        f"{_READERS}::test_a_recording_with_another_type_is_refused",
        f"{_READERS}::test_a_trace_with_another_type_is_refused",
        f"{_READERS}::test_a_software_file_with_another_type_is_refused",
    ),
    "a bomb, or a small file that takes much memory": (
        f"{_READERS}::test_a_fit_that_is_a_bomb_is_not_unpacked",
        f"{_READERS}::test_a_small_file_takes_little_memory_to_read",
    ),
    "a name of thousands of letters": (
        f"{_READERS}::test_a_name_of_thousands_of_letters_does_not_fill_the_screen",
    ),
    "a name that no file can have": (
        "tests/widgets/test_planner_session.py::test_a_file_that_cannot_be_written_is_a_sentence",
        "tests/experiment/results/test_results.py::test_a_name_that_is_no_folder_is_refused",
    ),
    "a text that would control a terminal": (
        "tests/cli/test_common.py::test_texts_of_files_control_no_terminal",
    ),
    "a file of any kind that is almost right": _MUTANTS,
}
"""What comes -> its tests, as `file::name`."""
