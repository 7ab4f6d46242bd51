//! User stories.
#![expect(clippy::unwrap_used, reason = "a story that cannot go on ends with a panic, in its helpers too")]

mod architecture;
mod bad_profiles;
mod bench_a_running_server;
mod built;
mod check_profiles;
mod compare_with_baseline;
mod containers;
mod engine_counters;
mod first_run;
mod gpu_leases;
mod install;
mod keep_and_resume;
mod known_answer;
mod launching;
mod load_a_server;
mod messages;
mod never_ready;
mod over_tls;
mod profile_layers;
mod profile_schema;
mod read_an_engines_log;
mod read_corpus_logs;
mod readme;
mod real_vllm;
mod records;
mod render_a_command;
mod server;
mod server_dies_while_loading;
mod sim;
mod simulated_server;
mod start_locally;
mod stop_and_ps;
mod stream_corpus;
mod support;
mod whole_runs;
