//! Mistakes of a first hour: programs in `mistakes/catalogue.txt` that must compile, warn, or fail with a message that leads
//! to the fix. One call of rustc checks all that fail, another all that compile. `shardax-train` has a catalogue of its own,
//! and includes this file as a module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of the catalogue.
struct Mistake {
    name: String,
    lines: Vec<String>,
    expectations: Vec<Expectation>,
}

enum Expectation {
    Compiles,
    Warns(String),
    /// An error that has this text.
    Says(String),
    /// Rust's own message cannot be changed: this page has the text.
    Book(String, String),
}

impl Mistake {
    fn fails(&self) -> bool {
        self.expectations.iter().any(|e| matches!(e, Expectation::Says(_) | Expectation::Book(..)))
    }
}

/// A message of rustc.
struct Message {
    level: String,
    /// The line of the program, from 1.
    line: usize,
    /// The message, its labels, notes and help.
    text: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes")
}

fn catalogue() -> Vec<Mistake> {
    let text = std::fs::read_to_string(folder().join("catalogue.txt")).expect("the catalogue");
    let mut mistakes: Vec<Mistake> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("# ")) {
        if let Some(name) = line.strip_prefix("== ") {
            mistakes.push(Mistake { name: name.to_owned(), lines: Vec::new(), expectations: Vec::new() });
            continue;
        }
        let mistake = mistakes.last_mut().expect("a name comes first");
        match line.strip_prefix("-- ") {
            Some(expectation) => mistake.expectations.push(expectation_of(expectation)),
            None => mistake.lines.push(line.to_owned()),
        }
    }
    mistakes
}

fn expectation_of(text: &str) -> Expectation {
    let (kind, rest) = text.split_once(": ").unwrap_or((text, ""));
    match kind {
        "compiles" => Expectation::Compiles,
        "warns" => Expectation::Warns(rest.to_owned()),
        "says" => Expectation::Says(rest.to_owned()),
        "book" => {
            let (page, words) = rest.split_once(": ").expect("a page and the text in it");
            Expectation::Book(page.to_owned(), words.to_owned())
        }
        other => panic!("unknown expectation {other:?}"),
    }
}

/// The libraries of this name next to the test program, the newest first.
fn libraries(name: &str) -> Vec<PathBuf> {
    let deps = std::env::current_exe().expect("the test's path").parent().expect("a folder").to_owned();
    let prefix = format!("lib{name}-");
    let mut built_libraries: Vec<PathBuf> = std::fs::read_dir(&deps)
        .expect("the folder of libraries")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "rlib"))
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix)))
        .collect();
    built_libraries.sort_by_key(|path| std::cmp::Reverse(path.metadata().and_then(|m| m.modified()).ok()));
    assert!(!built_libraries.is_empty(), "{} has no library {name}", deps.display());
    built_libraries
}

/// The library of the crate whose catalogue this is, besides `shardax` and `shardax_nn`.
fn is_catalogue_of_train() -> bool {
    env!("CARGO_PKG_NAME") == "shardax-train"
}

/// rustc with the newest library of the crate, and the `shardax` and `shardax_nn` that it is built with: builds with other
/// features leave others.
fn rustc(folder: &Path) -> Command {
    let train = is_catalogue_of_train().then(|| libraries("shardax_train").swap_remove(0));
    let deps = libraries("shardax_nn")[0].parent().expect("a folder").to_owned();
    let command = |shardax: &Path, nn: &Path| {
        let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        command
            .current_dir(folder)
            .args(["--edition", "2024", "--crate-type", "bin", "--emit=metadata", "--error-format=json"])
            .arg("-o")
            .arg(folder.join("program.rmeta"))
            .arg("-L")
            .arg(format!("dependency={}", deps.display()))
            .arg("--extern")
            .arg(format!("shardax_nn={}", nn.display()))
            .arg("--extern")
            .arg(format!("shardax={}", shardax.display()));
        if let Some(train) = &train {
            command.arg("--extern").arg(format!("shardax_train={}", train.display()));
        }
        command
    };
    // Cargo keeps libraries of several feature sets in a folder. Only libraries that belong together compile this
    // program.
    let mut probe = "pub fn same(x: shardax::Array) -> shardax_nn::prelude::Array { x } fn main() {}".to_owned();
    if train.is_some() {
        probe.push_str("pub fn average() -> impl shardax::Tree { shardax_train::Average::new() }");
        probe.push_str("pub fn state(x: impl shardax_nn::Module) { shardax_train::checkpoint::save(\"\", &x).ok(); }");
    }
    std::fs::write(folder.join("probe.rs"), probe).expect("a program");
    let all_nn = libraries("shardax_nn");
    let pairs = libraries("shardax").into_iter().flat_map(|shardax| all_nn.iter().map(move |nn| (shardax.clone(), nn)));
    let fits = |(shardax, nn): &(PathBuf, &PathBuf)| {
        command(shardax, nn).arg("probe.rs").output().is_ok_and(|output| output.status.success())
    };
    let (shardax, nn) = pairs.into_iter().find(fits).expect("the libraries that the crate is built with");
    command(&shardax, nn)
}

/// One program of all mistakes, and the lines at which each begins.
fn program(mistakes: &[&Mistake]) -> (String, Vec<usize>) {
    let mut text = "#![allow(unused_variables, dead_code, unused_assignments, unused_imports)]\n".to_owned();
    let imports = if is_catalogue_of_train() { "use shardax_train::data::*;" } else { "" };
    let mut starts = Vec::new();
    for (i, mistake) in mistakes.iter().enumerate() {
        starts.push(text.lines().count() + 1);
        text.push_str(&format!(
            "mod m{i} {{ use shardax_nn::prelude::*; {imports} pub fn run() -> Result<()> {{ let x = ones([4, 3]); let y = ones([4, 3]);\n{}\nOk(()) }} }}\n",
            mistake.lines.join("\n")
        ));
    }
    text.push_str("fn main() {}\n");
    (text, starts)
}

/// Checks the program, without code for the machine.
fn messages(program: &str, name: &str) -> Vec<Message> {
    let folder = std::env::temp_dir().join(format!("shardax-mistakes-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("mistakes.rs"), program).expect("the program");
    let output = rustc(&folder).arg("mistakes.rs").output().expect("rustc");
    std::fs::remove_dir_all(&folder).ok();
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter_map(|line| message(&serde_json::from_str(line).ok()?)).collect()
}

fn message(json: &serde_json::Value) -> Option<Message> {
    let spans = json["spans"].as_array()?;
    let first = spans.iter().find(|span| span["is_primary"] == true)?;
    let code = json["code"]["code"].as_str().map(|code| format!("[{code}]")).unwrap_or_default();
    let level = json["level"].as_str()?.to_owned();
    let mut text = format!("{level}{code}: {}\n", json["message"].as_str()?);
    // Definitions of the standard library have labels only where its sources are installed.
    let is_of_std =
        |span: &&serde_json::Value| span["file_name"].as_str().is_some_and(|file| file.contains("/library/"));
    for label in spans.iter().filter(|span| !is_of_std(span)).filter_map(|span| span["label"].as_str()) {
        text.push_str(&format!("  {label}\n"));
    }
    for child in json["children"].as_array()? {
        let words = child["message"].as_str()?;
        // Lists that grow with the library, and the place of files.
        let is_noise =
            ["the following other types implement", "the full name for the type", "consider using `--verbose`"];
        if !is_noise.iter().any(|noise| words.starts_with(noise)) {
            text.push_str(&format!("  {}: {words}\n", child["level"].as_str()?));
        }
    }
    let text = without_lines(&text);
    // A macro's error is at the line of its call.
    let mut innermost = first;
    while innermost["expansion"]["span"].is_object()
        && innermost["file_name"].as_str().is_none_or(|f| !f.ends_with("mistakes.rs"))
    {
        innermost = &innermost["expansion"]["span"];
    }
    Some(Message { level, line: innermost["line_start"].as_u64()? as usize, text })
}

/// The text with `mistakes.rs` in place of `mistakes.rs:12:34: 12:56`.
fn without_lines(text: &str) -> String {
    let mut parts = text.split("mistakes.rs:");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let remaining = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
        let remaining = remaining
            .strip_prefix(' ')
            .unwrap_or(remaining)
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
        out.push_str("mistakes.rs");
        out.push_str(remaining);
    }
    out
}

/// The messages by mistake.
fn by_mistake(mistakes: &[&Mistake], name: &str) -> BTreeMap<usize, Vec<Message>> {
    let (program, starts) = program(mistakes);
    let mut by_mistake: BTreeMap<usize, Vec<Message>> = BTreeMap::new();
    for message in messages(&program, name) {
        let mistake = starts.partition_point(|start| *start <= message.line);
        assert!(mistake > 0, "rustc could not check the catalogue:\n{}", message.text);
        by_mistake.entry(mistake - 1).or_default().push(message);
    }
    by_mistake
}

fn texts(messages: Option<&Vec<Message>>, level: &str) -> String {
    messages.into_iter().flatten().filter(|m| m.level == level).map(|m| m.text.as_str()).collect()
}

#[test]
fn messages_lead_to_the_fix() {
    let mistakes = catalogue();
    let failing: Vec<&Mistake> = mistakes.iter().filter(|m| m.fails()).collect();
    let failures = by_mistake(&failing, "failing");
    let (mut wrong, mut all) = (Vec::new(), String::new());
    // All texts are compared with a snapshot too, so that a changed message is seen in a review.
    for (i, mistake) in failing.iter().enumerate() {
        let text = texts(failures.get(&i), "error");
        all.push_str(&format!("== {}\n{text}\n", mistake.name));
        for expectation in &mistake.expectations {
            let is_met = match expectation {
                Expectation::Says(words) => text.contains(words.as_str()),
                Expectation::Book(page, words) => !text.is_empty() && page_has(page, words),
                _ => true,
            };
            if !is_met {
                let expected = match expectation {
                    Expectation::Says(words) => format!("the message must have {words:?}"),
                    Expectation::Book(page, words) => format!("docs/{page} must have {words:?}"),
                    _ => String::new(),
                };
                wrong.push(format!("{}: {expected}; rustc says\n{text}", mistake.name));
            }
        }
    }
    snapshot(&all);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn page_has(page: &str, words: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(words))
}

/// Compares all messages with the committed ones, if the compiler is the one that wrote those.
fn snapshot(all: &str) {
    let path = folder().join("messages.txt");
    let rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("--version").output();
    let version = String::from_utf8_lossy(&rustc.expect("rustc").stdout).trim().to_owned();
    let text = format!("{version}\n\n{}\n", all.trim_end());
    if std::env::var_os("SHARDAX_TEST_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("the snapshot can be written");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    if stored.lines().next() == Some(version.as_str()) {
        assert!(
            stored == text,
            "{} differs; it would be\n{text}\n(SHARDAX_TEST_UPDATE_SNAPSHOTS=1 writes it)",
            path.display()
        );
    }
}

#[test]
fn habits_compile_and_unused_results_warn() {
    let mistakes = catalogue();
    let compiling: Vec<&Mistake> = mistakes.iter().filter(|m| !m.fails()).collect();
    let compiled = by_mistake(&compiling, "compiling");
    let mut wrong = Vec::new();
    for (i, mistake) in compiling.iter().enumerate() {
        let (errors, warnings) = (texts(compiled.get(&i), "error"), texts(compiled.get(&i), "warning"));
        let mut expects_warnings = false;
        for expectation in &mistake.expectations {
            if let Expectation::Warns(words) = expectation {
                expects_warnings = true;
                if !warnings.contains(words.as_str()) {
                    wrong.push(format!("{}: a warning must have {words:?}; rustc says\n{warnings}", mistake.name));
                }
            }
        }
        if !errors.is_empty() || !expects_warnings && !warnings.is_empty() {
            wrong.push(format!("{}: must compile; rustc says\n{errors}{warnings}", mistake.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Traits that no message is needed for, and why.
const WITHOUT_MESSAGE: &[(&str, &str)] = &[
    ("CallFile Mode BuiltCell NormLayer KernelLayer", "users neither name nor implement them"),
    ("IntoJit", "every function that can be transformed implements it"),
    ("IntoOutput", "the message of `Function` says what a function returns"),
    ("Primitive ThreadState", "the bounds of those who write primitives, who implement them first"),
];

/// Without a message of its own, the compiler reports an argument of another type by the name of a trait, which says
/// nothing about what to write.
#[test]
fn public_traits_say_what_to_write() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let mut silent = Vec::new();
    for name in ["shardax", "shardax-nn", "shardax-train", "shardax-models"] {
        visit_sources(&crates.join(name).join("src"), &mut |text| silent.extend(traits_without_message(text)));
    }
    let excepted: Vec<&str> = WITHOUT_MESSAGE.iter().flat_map(|(names, _)| names.split_whitespace()).collect();
    let missing: Vec<_> = silent.iter().filter(|name| !excepted.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "write `#[diagnostic::on_unimplemented(…)]` above these traits: {missing:?}");
    let needless: Vec<_> = excepted.iter().filter(|name| !silent.iter().any(|trait_| trait_ == *name)).collect();
    assert!(needless.is_empty(), "in WITHOUT_MESSAGE without need: {needless:?}");
}

fn visit_sources(folder: &Path, visit: &mut impl FnMut(&str)) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            visit_sources(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// The names of the public traits of a source that have no message. Attributes and comments are between an item and the
/// empty line or the brace before it.
fn traits_without_message(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut has_message = false;
    for line in text.lines() {
        match line.strip_prefix("pub trait ") {
            Some(rest) => {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                if !has_message {
                    names.push(name.to_owned());
                }
            }
            None if line.starts_with("#[diagnostic::on_unimplemented") => has_message = true,
            None if line.is_empty() || line == "}" => has_message = false,
            None => {}
        }
    }
    names
}
