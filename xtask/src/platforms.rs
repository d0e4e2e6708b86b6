//! `docs/platforms.md`: programs and operations that compile for TPUs and GPUs, with the compilers of
//! `cargo xtask accelerators`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const OPEN: &str = "<!-- table, written by `cargo xtask platforms` -->\n";
const CLOSE: &str = "<!-- end of table -->";

/// Writes the page from saved lines. Parts of the page for which there are no lines stay.
pub fn from(root: &Path, files: &[&str]) -> Result<(), String> {
    let lines = files.iter().map(|file| crate::read(Path::new(file))).collect::<Result<String, _>>()?;
    write(root, &lines)
}

/// The options of a run.
struct Options {
    /// Compile one in this number of reference values.
    every: String,
    /// The topologies for the reference values; by default all.
    on: Option<String>,
    /// The number of parallel processes.
    processes: usize,
}

impl Options {
    fn read(args: &[&str]) -> Result<Options, String> {
        let mut options = Options { every: "1".into(), on: None, processes: 1 };
        for pair in args.chunks(2) {
            match pair {
                ["--every", n] => options.every = (*n).to_owned(),
                ["--on", names] => options.on = Some((*names).to_owned()),
                ["--processes", n] => {
                    options.processes = n.parse().ok().filter(|n| *n > 0).ok_or("--processes takes a number")?;
                }
                _ => return Err(crate::USAGE.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Compiles everything and writes the page. The reference values take hours, so finished lines are saved in the target
/// folder; rerun to resume.
pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let options = Options::read(args)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("platforms");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    println!("finished lines are saved in {}: remove it to start over", folder.display());

    let programs = folder.join("programs");
    let mut begun = start(root, "shardax-examples", "platforms", "programs_on_topologies", &programs)?;
    finish("programs_on_topologies", begun.spawn())?;

    let shares = (0..options.processes).map(|i| folder.join(format!("golden-{i}-of-{}", options.processes)));
    let shares: Vec<PathBuf> = shares.collect();
    // The tests of both crates append to the same files.
    for package in ["shardax", "shardax-nn"] {
        let processes = shares.iter().enumerate().map(|(i, share)| {
            let mut command = start(root, package, "golden", "families_on_topologies", share)?;
            command.env("SHARDAX_TEST_PLATFORMS_EVERY", &options.every);
            command.env("SHARDAX_TEST_PLATFORMS_SHARE", format!("{i}/{}", options.processes));
            command.envs(options.on.as_ref().map(|on| ("SHARDAX_TEST_PLATFORMS_ON", on)));
            Ok(command.spawn())
        });
        let processes: Vec<_> = processes.collect::<Result<_, String>>()?;
        for process in processes {
            finish("families_on_topologies", process)?;
        }
    }
    let on = options.on.as_deref().unwrap_or("v5e:2x4,v5p:2x2x2,h100");
    let run = folder.join("run");
    let lines = also_compiled(root, &CASES_OF_TESTS, on, counted)? + &also_compiled(root, &EXAMPLES, on, by_example)?;
    std::fs::write(&run, lines).map_err(|e| format!("{}: {e}", run.display()))?;
    let files = [programs, run].into_iter().chain(shares);
    let lines = files.map(|file| crate::read(&file)).collect::<Result<String, _>>()?;
    write(root, &lines)
}

fn finish(name: &str, process: std::io::Result<Child>) -> Result<(), String> {
    let status = process.and_then(|mut process| process.wait()).map_err(|e| format!("cannot start cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed")) }
}

/// The command that runs a test which writes lines to `out`.
fn start(root: &Path, package: &str, test: &str, function: &str, out: &Path) -> Result<Command, String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["test", "--package", package, "--test", test, "--", "--ignored", "--exact", function, "--nocapture"])
        .env("SHARDAX_TEST_PLATFORMS_OUT", out)
        .envs(crate::accelerators::variables()?)
        .current_dir(root);
    Ok(command)
}

/// The tests that contain most of JAX's own cases.
const CASES_OF_TESTS: [&str; 6] = ["--package", "shardax", "--test", "spmd", "--test", "collectives"];
/// The tests that run the examples.
const EXAMPLES: [&str; 6] = ["--package", "shardax-examples", "--test", "examples", "--test", "vision"];

/// Runs tests that also compile their programs for these topologies, and counts the results as lines.
fn also_compiled(root: &Path, tests: &[&str], on: &str, lines: fn(&str) -> String) -> Result<String, String> {
    println!("compiling the programs of {}", tests.join(" "));
    let output = Command::new(env!("CARGO"))
        .arg("test")
        .args(tests)
        .args(["--", "--nocapture"])
        .env("SHARDAX_COMPILE_ALSO_FOR", on)
        .envs(crate::accelerators::variables()?)
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} failed:\n{stderr}", tests.join(" ")));
    }
    Ok(lines(&stderr))
}

/// Lines for the page from the output of examples: how many programs there are, and how many compile, by topology.
fn by_example(said: &str) -> String {
    let mut counts = BTreeMap::<(&str, &str), [usize; 2]>::new();
    for line in said.lines() {
        let Some((name, line)) = line.split_once(": ") else { continue };
        if let Some((_, on)) = line.split_once(" compiles for ") {
            counts.entry((name, on)).or_default().iter_mut().for_each(|count| *count += 1);
        } else if let Some((on, _)) = line.split_once(" does not compile for ").and_then(|(_, s)| s.split_once(": ")) {
            counts.entry((name, on)).or_default()[1] += 1;
        }
    }
    counts.iter().map(|((name, on), [compiled, counts])| format!("example|{name}|{on}|{compiled}|{counts}\n")).collect()
}

/// Lines for the page from the output of tests that also compile for other platforms: one for each topology, and one
/// for each reason why a program does not compile.
fn counted(said: &str) -> String {
    let (mut all, mut rejected) = (BTreeMap::<&str, [usize; 2]>::new(), BTreeMap::<(&str, &str), usize>::new());
    for line in said.lines() {
        if let Some((_, on)) = line.split_once(" compiles for ") {
            all.entry(on).or_default().iter_mut().for_each(|count| *count += 1);
        } else if let Some((on, why)) = line.split_once(" does not compile for ").and_then(|(_, s)| s.split_once(": "))
        {
            all.entry(on).or_default()[1] += 1;
            *rejected.entry((on, why)).or_default() += 1;
        }
    }
    let cases = all.iter().map(|(on, [compiled, all])| format!("case|{on}|{compiled}|{all}\n"));
    let reasons = rejected.iter().map(|((on, why), n)| format!("caserejected|{on}|{}|{n}\n", plain_text(why)));
    cases.chain(reasons).collect()
}

const EXAMPLES_RUN: &str = "## Examples\n";
const CASES: &str = "## Tests that follow JAX's\n";
const OPERATIONS: &str = "## Operations\n";

fn write(root: &Path, lines: &str) -> Result<(), String> {
    let page = root.join("docs/platforms.md");
    let text = crate::read(&page)?;
    let (before, rest) = text.split_once(OPEN).ok_or("docs/platforms.md has no marker for the table")?;
    let (table, after) = rest.split_once(CLOSE).ok_or("docs/platforms.md: the table has no end marker")?;
    let operations_start = table.find(OPERATIONS).ok_or("docs/platforms.md: the table has no part about operations")?;
    let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('|').collect()).collect();
    let middle = table.find(CASES).ok_or("docs/platforms.md: the table has no part about JAX's own cases")?;
    let examples_start = table.find(EXAMPLES_RUN).ok_or("docs/platforms.md: the table has no part about examples")?;
    // A part without new rows keeps its text, because the parts are written by different commands.
    let programs = if has_rows(&rows, "program") { programs(&rows) } else { table[..examples_start].to_owned() };
    let examples = if has_rows(&rows, "example") { examples(&rows) } else { table[examples_start..middle].to_owned() };
    let cases = if has_rows(&rows, "case") { cases(&rows) } else { table[middle..operations_start].to_owned() };
    let operations = if has_rows(&rows, "golden") {
        operations(&rows, &table[operations_start..])
    } else {
        table[operations_start..].to_owned()
    };
    std::fs::write(&page, format!("{before}{OPEN}{programs}{examples}{cases}{operations}{CLOSE}{after}"))
        .map_err(|e| format!("{}: {e}", page.display()))
}

/// The table of programs, from lines of fields separated by bars.
fn programs(rows: &[Vec<&str>]) -> String {
    let mut text = String::from(
        "\n## Programs\n\n| program | what | devices | arguments | temporaries | collectives, and how often each runs |\n|---|---|---|--:|--:|---|\n",
    );
    for row in rows {
        let ["program", name, what, on, arguments, temporaries, collectives] = row[..] else { continue };
        let (arguments, temporaries, collectives) = match arguments {
            "rejected" => ("", String::new(), format!("does not compile: {temporaries}")),
            bytes => (bytes, kilobytes(temporaries), collectives.to_owned()),
        };
        let collectives = if collectives.is_empty() { "none".to_owned() } else { collectives };
        let _ =
            writeln!(text, "| `{name}` | {what} | {on} | {} | {temporaries} | {collectives} |", kilobytes(arguments));
    }
    text + "\nMemory is on each device.\n\n"
}

/// The table of the examples' programs.
fn examples(rows: &[Vec<&str>]) -> String {
    let mut text = format!(
        "{EXAMPLES_RUN}\nTests run each example on CPU and compile its programs for as many devices of these topologies:\n\n"
    );
    let mut cells_by_example = BTreeMap::<&str, BTreeMap<&str, String>>::new();
    for row in rows {
        let ["example", name, on, compiled, of] = row[..] else { continue };
        let cell = if compiled == of { format!("all {of}") } else { format!("{compiled} of {of}") };
        cells_by_example.entry(name).or_default().insert(on, cell);
    }
    let names: BTreeSet<&str> = cells_by_example.values().flat_map(|cells| cells.keys().copied()).collect();
    let heads: Vec<&str> = names.iter().copied().collect();
    let _ = writeln!(text, "| example | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(heads.len()));
    for (name, cells) in &cells_by_example {
        let texts: Vec<&str> = names.iter().map(|on| cells.get(on).map_or("", String::as_str)).collect();
        let _ = writeln!(text, "| `{name}` | {} |", texts.join(" | "));
    }
    text + "\n"
}

/// The table of the tests' programs.
fn cases(rows: &[Vec<&str>]) -> String {
    let mut text = format!(
        "{CASES}\nThe [tests that follow JAX's](conformance.md#jaxs-own-tests) for `pmap`, `shard_map` and collectives run on CPU; with\n`SHARDAX_COMPILE_ALSO_FOR` their programs are compiled for as many devices of these topologies:\n\n| topology | programs that compile | of |\n|---|--:|--:|\n"
    );
    for row in rows {
        let ["case", on, compiled, all] = row[..] else { continue };
        let _ = writeln!(text, "| {on} | {compiled} | {all} |");
    }
    let mut rejected = rows.iter().filter(|row| row[0] == "caserejected").peekable();
    if rejected.peek().is_some() {
        text += "\n";
    }
    for row in rejected {
        let [_, on, why, count] = row[..] else { continue };
        let _ = writeln!(text, "- {on}: {why} ({count})");
    }
    text + "\n"
}

/// The results of a family for a topology: checks that compile, all checks, and the sampling rate.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Cell<'a> {
    compiled: usize,
    all: usize,
    every: &'a str,
}

impl<'a> Cell<'a> {
    /// Parses the text of [`Cell::text`].
    fn read(text: &'a str) -> Option<Cell<'a>> {
        let (count, every) = text.split_once(", one in ").unwrap_or((text, "1"));
        let (compiled, all) = match count.strip_prefix("all ") {
            Some(all) => (all, all),
            None => count.split_once(" of ")?,
        };
        Some(Cell { compiled: compiled.parse().ok()?, all: all.parse().ok()?, every })
    }

    fn text(&self) -> String {
        let count = if self.compiled == self.all {
            format!("all {}", self.all)
        } else {
            format!("{} of {}", self.compiled, self.all)
        };
        if self.every == "1" { count } else { format!("{count}, one in {}", self.every) }
    }
}

/// The cells of a page by family and topology.
fn cells(page: &str) -> BTreeMap<(&str, &str), Cell<'_>> {
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let mut rows = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<&str>>());
    let names = rows.next().unwrap_or_default();
    let mut cells = BTreeMap::new();
    for row in rows.filter(|row| row[0] != "together") {
        for (on, text) in names.iter().zip(&row).skip(1) {
            cells.extend(Cell::read(text).map(|cell| ((row[0], *on), cell)));
        }
    }
    cells
}

/// The table of reference values. Cells without new rows are taken from the page.
fn operations(rows: &[Vec<&str>], page: &str) -> String {
    let mut text = format!(
        "{OPERATIONS}\nThe checks of the reference values (results, gradients, tangents and batches of every primitive, layer,\nloss and optimizer), compiled for one device: all of them, or one in so many.\n\n"
    );
    let mut new = BTreeMap::<(&str, &str), Cell>::new();
    for row in rows {
        let ["golden", family, on, every, _, compiled, all] = row[..] else { continue };
        let cell = new.entry((family, on)).or_default();
        *cell = Cell { compiled: cell.compiled + number_or_zero(compiled), all: cell.all + number_or_zero(all), every };
    }
    let mut families = BTreeMap::<&str, BTreeMap<&str, Cell>>::new();
    let mut sums = BTreeMap::<&str, Cell>::new();
    // A run may cover only some families or topologies, so the other cells of the page are kept.
    let unchanged_cells = cells(page).into_iter().filter(|(key, _)| !new.contains_key(key));
    for ((family, on), cell) in unchanged_cells.chain(new.iter().map(|(key, cell)| (*key, *cell))) {
        families.entry(family).or_default().insert(on, cell);
        let sum = sums.entry(on).or_default();
        *sum = Cell { compiled: sum.compiled + cell.compiled, all: sum.all + cell.all, every: "1" };
    }
    let names: Vec<&str> = sums.keys().copied().collect();
    let _ = writeln!(text, "| reference values | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "--:|".repeat(names.len()));
    for (family, cells) in &families {
        let _ = writeln!(text, "| {family} | {} |", row_of(cells, &names));
    }
    let _ = writeln!(text, "| together | {} |", row_of(&sums, &names));

    let mut rejected = BTreeMap::<(&str, &str, &str), (usize, &str)>::new();
    for row in rows {
        let ["rejected", family, on, _, why, count, path] = row[..] else { continue };
        rejected.entry((family, on, why)).or_insert((0, path)).0 += number_or_zero(count);
    }
    let unchanged_reasons = page.lines().filter_map(|line| {
        let (family, rest) = line.strip_prefix("- ")?.split_once(" for ")?;
        let (on, _) = rest.split_once(": ")?;
        let on = names.iter().find(|name| on == **name)?;
        (!new.contains_key(&(family, on))).then(|| line.to_owned())
    });
    let mut reasons: Vec<String> = unchanged_reasons.collect();
    for ((family, on, why), (count, path)) in rejected {
        reasons.push(format!("- {family} for {on}: {why} ({count} of them, as {path})"));
    }
    reasons.sort();
    if !reasons.is_empty() {
        let _ = write!(text, "\nThese do not compile:\n\n{}\n", reasons.join("\n"));
    }
    text + "\n"
}

fn kilobytes(bytes: &str) -> String {
    bytes.parse::<f64>().map_or(String::new(), |bytes| format!("{:.1} kB", bytes / 1000.0))
}

/// Replaces the characters that would end a table cell or start a tag.
fn plain_text(text: &str) -> String {
    text.replace('|', "/").replace('<', "(").replace('>', ")")
}

fn has_rows(rows: &[Vec<&str>], kind: &str) -> bool {
    rows.iter().any(|row| row[0] == kind)
}

fn number_or_zero(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

/// Returns the cells of a row of the table, in the order of the columns.
fn row_of(cells: &BTreeMap<&str, Cell>, columns: &[&str]) -> String {
    let texts: Vec<String> = columns.iter().map(|on| cells.get(on).map_or(String::new(), Cell::text)).collect();
    texts.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "## Operations

| reference values | h100 | v5e:2x4 |
|---|--:|--:|
| conv | 3 of 4 | all 4 |
| sort | all 2, one in 8 | all 2, one in 8 |
| together | 5 of 6 | all 6 |

These do not compile:

- conv for h100: conv of int32: not there (1 of them, as conv/i32)
";

    /// Cells without new results are unchanged.
    #[test]
    fn new_results_replace_old_results_of_family() {
        let lines = "golden|sort|h100|1|0|8|9\ngolden|sort|h100|1|1|7|7\nrejected|sort|h100|1|no sort|1|sort/c64";
        let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('|').collect()).collect();
        let text = operations(&rows, PAGE);
        for line in [
            "| conv | 3 of 4 | all 4 |",
            "| sort | 15 of 16 | all 2, one in 8 |",
            "| together | 18 of 20 | all 6 |",
            "- conv for h100: conv of int32: not there (1 of them, as conv/i32)",
            "- sort for h100: no sort (1 of them, as sort/c64)",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        let output = "shardax: f compiles for h100\nnoise\nshardax: f does not compile for v5e:2x4: no sort\nshardax: g compiles for v5e:2x4";
        let lines = counted(output);
        assert_eq!(lines, "case|h100|1|1\ncase|v5e:2x4|1|2\ncaserejected|v5e:2x4|no sort|1\n");
        let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('|').collect()).collect();
        assert!(cases(&rows).contains("| v5e:2x4 | 1 | 2 |\n\n- v5e:2x4: no sort (1)\n"), "{}", cases(&rows));
        let output =
            "digits: shardax: f compiles for h100\ndigits: shardax: g does not compile for h100: no sort\nnoise";
        let lines = by_example(output);
        assert_eq!(lines, "example|digits|h100|1|2\n");
        let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('|').collect()).collect();
        assert!(examples(&rows).contains("| `digits` | 1 of 2 |\n"), "{}", examples(&rows));
        assert_eq!(Cell::read("all 7, one in 8"), Some(Cell { compiled: 7, all: 7, every: "8" }));
    }
}
