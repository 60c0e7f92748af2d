//! Runs histories until the time is over: `--seconds N`, from `--seed S` on.
//!
//! With `--steps 1,2,..` too it runs that one again; KORVET_TRACE=1 shows what happens in it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use korvet_simulate::{Seen, run, run_steps, shrunk};

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}

fn numeric(name: &str) -> Option<u64> {
    argument(name).and_then(|text| text.parse().ok())
}

fn main() -> ExitCode {
    // A panic is a history that fails, and is shown as such.
    std::panic::set_hook(Box::new(|_| {}));
    let first = numeric("--seed").unwrap_or(0);
    let outcome = argument("--steps").map(|text| {
        let kept: Vec<usize> = text.split(',').filter_map(|step| step.parse().ok()).collect();
        run_steps(first, &kept, None)
    });
    match outcome {
        None => run_many(first),
        Some(Ok(_)) => ExitCode::SUCCESS,
        Some(Err(text)) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run_many(first: u64) -> ExitCode {
    let (begun, limit) = (Instant::now(), Duration::from_secs(numeric("--seconds").unwrap_or(10)));
    let (most, failures_max) = (numeric("--histories"), numeric("--failures").unwrap_or(1));
    let (mut histories, mut failures, mut seen) = (0, 0, Seen::new());
    while begun.elapsed() < limit && failures < failures_max && most.is_none_or(|most| histories < most) {
        let number = first + histories;
        histories += 1;
        match run(number, None) {
            Ok(more) => more.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err(text) => {
                failures += 1;
                println!("seed {number} fails: {text}");
                if let Some(failure) = shrunk(number, None) {
                    println!("{failure}");
                }
            }
        }
    }
    println!("{histories} histories, {failures} failed");
    for (what, count) in seen {
        println!("{count:>9} {what}");
    }
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
