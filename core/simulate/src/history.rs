//! One history from its seed to its end, and the fewest steps with which it still fails.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::step::{Step, steps};
use crate::world::{Fault, World};

/// A history that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The steps of that seed with which it fails.
    pub steps: Vec<usize>,
    /// What was wrong.
    pub text: String,
    /// The steps in words.
    pub shown: Vec<String>,
}

impl Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(usize::to_string).collect();
        writeln!(to, "{}", self.text)?;
        writeln!(to, "again: korvet-simulate --seed {} --steps {}", self.seed, steps.join(","))?;
        write!(to, "steps: {}", self.shown.join(", "))
    }
}

/// How often what happened.
pub type Seen = BTreeMap<String, usize>;

/// Run the history of a seed.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Seen, String> {
    run_all(seed, &steps(seed), fault)
}

/// Run the history of a seed with some of its steps.
pub fn run_steps(seed: u64, kept: &[usize], fault: Option<Fault>) -> Result<Seen, String> {
    let steps: Vec<Step> = steps(seed).into_iter().filter(|step| kept.contains(&step.index)).collect();
    run_all(seed, &steps, fault)
}

fn run_all(seed: u64, steps: &[Step], fault: Option<Fault>) -> Result<Seen, String> {
    guarded(|| {
        let mut world = World::new(seed, fault);
        for step in steps {
            world.step(step);
            if let Some(failure) = world.ledger.failure.take() {
                return Err(format!("{failure} (step {}: {:?})", step.index, step.kind));
            }
        }
        world.settle();
        match world.ledger.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(world.ledger.seen),
        }
    })
}

/// Run a history in which a panic is a failure.
pub(crate) fn guarded(run: impl FnOnce() -> Result<Seen, String>) -> Result<Seen, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Leave out steps of a history that fails as long as it still fails.
pub fn shrunk(seed: u64, fault: Option<Fault>) -> Option<Failure> {
    let all = steps(seed);
    let (steps, text) = shrunk_by(all.len(), |kept| run_steps(seed, kept, fault).map(drop))?;
    let shown = steps.iter().map(|index| format!("{index} {:?}", all[*index].kind)).collect();
    Some(Failure { seed, steps, text, shown })
}

/// The fewest steps of so many with which a history fails, and how.
pub(crate) fn shrunk_by(
    count: usize,
    mut run: impl FnMut(&[usize]) -> Result<(), String>,
) -> Option<(Vec<usize>, String)> {
    let mut kept: Vec<usize> = (0..count).collect();
    let mut text = run(&kept).err()?;
    // It may fail for another reason with fewer steps; that is another failure.
    let shape = |text: &str| text.chars().filter(char::is_ascii_lowercase).take(40).collect::<String>();
    let wanted = shape(&text);
    let mut size = kept.len() / 2;
    while size > 0 {
        let mut begin = 0;
        while begin < kept.len() {
            let fewer: Vec<usize> = kept
                .iter()
                .enumerate()
                .filter(|(place, _)| *place < begin || *place >= begin + size)
                .map(|(_, step)| *step)
                .collect();
            match run(&fewer) {
                Err(failure) if shape(&failure) == wanted => (text, kept) = (failure, fewer),
                _ => begin += size,
            }
        }
        size /= 2;
    }
    Some((kept, text))
}
