//! Runs histories until the time is over: `--seconds N`, from `--seed S` on.
//!
//! With `--steps 1,2,..` too it runs that one again; KORVET_TRACE=1 shows what happens in it. With `--appends` they
//! are histories of producers and consumers. With `--server SOCKET` and `--scripts NAME=SHA,..` they are histories of the model of the log's scripts, beside the server there.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use korvet_simulate::{
    Comparison, Failure, Seen, run, run_append_steps, run_appends, run_steps, shrunk, shrunk_appends,
};

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}

fn numeric(name: &str) -> Option<u64> {
    argument(name).and_then(|text| text.parse().ok())
}

/// How histories are run.
trait Runs {
    fn run(&mut self, seed: u64) -> Result<Seen, String>;
    fn run_steps(&mut self, seed: u64, kept: &[usize]) -> Result<Seen, String>;
    fn shrunk(&mut self, seed: u64) -> Option<Failure>;
}

struct Client;

impl Runs for Client {
    fn run(&mut self, seed: u64) -> Result<Seen, String> {
        run(seed, None)
    }

    fn run_steps(&mut self, seed: u64, kept: &[usize]) -> Result<Seen, String> {
        run_steps(seed, kept, None)
    }

    fn shrunk(&mut self, seed: u64) -> Option<Failure> {
        shrunk(seed, None)
    }
}

struct Appends;

impl Runs for Appends {
    fn run(&mut self, seed: u64) -> Result<Seen, String> {
        run_appends(seed, None)
    }

    fn run_steps(&mut self, seed: u64, kept: &[usize]) -> Result<Seen, String> {
        run_append_steps(seed, kept, None)
    }

    fn shrunk(&mut self, seed: u64) -> Option<Failure> {
        shrunk_appends(seed, None)
    }
}

impl Runs for Comparison {
    fn run(&mut self, seed: u64) -> Result<Seen, String> {
        Comparison::run(self, seed)
    }

    fn run_steps(&mut self, seed: u64, kept: &[usize]) -> Result<Seen, String> {
        Comparison::run_steps(self, seed, kept)
    }

    fn shrunk(&mut self, seed: u64) -> Option<Failure> {
        Comparison::shrunk(self, seed)
    }
}

fn main() -> ExitCode {
    let first = numeric("--seed").unwrap_or(0);
    let mut runs: Box<dyn Runs> = match argument("--server") {
        None => {
            // A panic is a history that fails, and is shown as such.
            std::panic::set_hook(Box::new(|_| {}));
            if std::env::args().any(|word| word == "--appends") { Box::new(Appends) } else { Box::new(Client) }
        }
        Some(path) => {
            let scripts = argument("--scripts").unwrap_or_default();
            let pairs = scripts.split(',').filter_map(|pair| pair.split_once('='));
            Box::new(Comparison::new(&path, pairs.map(|(name, sha)| (name.to_owned(), sha.to_owned())).collect()))
        }
    };
    let outcome = argument("--steps").map(|text| {
        let kept: Vec<usize> = text.split(',').filter_map(|step| step.parse().ok()).collect();
        runs.run_steps(first, &kept)
    });
    match outcome {
        None => run_many(runs.as_mut(), first),
        Some(Ok(_)) => ExitCode::SUCCESS,
        Some(Err(text)) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run_many(runs: &mut dyn Runs, first: u64) -> ExitCode {
    let (begun, limit) = (Instant::now(), Duration::from_secs(numeric("--seconds").unwrap_or(10)));
    let (most, failures_max) = (numeric("--histories"), numeric("--failures").unwrap_or(1));
    let (mut histories, mut failures, mut seen) = (0, 0, Seen::new());
    while begun.elapsed() < limit && failures < failures_max && most.is_none_or(|most| histories < most) {
        let number = first + histories;
        histories += 1;
        match runs.run(number) {
            Ok(more) => more.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err(text) => {
                failures += 1;
                println!("seed {number} fails: {text}");
                if let Some(failure) = runs.shrunk(number) {
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
