//! Chat templates.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind as JinjaErrorKind};
use shardax::error::Result;

use super::json;
use crate::error::value_error;

/// A chat template: a Jinja program that converts a conversation to the text format that a model was trained with.
///
/// A template can use the same extensions as in `transformers`: the functions `raise_exception` and `strftime_now`, the
/// filter `tojson`, the methods of Python's strings, lists and dictionaries, and the statements `break` and `continue`.
/// Dates are in UTC.
///
/// ```
/// use shardax_models::text::ChatTemplate;
/// let template = ChatTemplate::new("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}[assistant]")?;
/// let text = template.render(r#"[{"role": "user", "content": " Hello "}]"#)?;
/// assert_eq!(text, "[user]Hello\n[assistant]");
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
}

/// The name of the only template of an environment.
const NAME: &str = "chat_template";
/// The maximal number of steps of a template, so that an endless loop becomes an error.
const MAX_STEPS: u64 = 10_000_000;

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns an error with the line of the template if its syntax is wrong.
    #[track_caller]
    pub fn new(template: &str) -> Result<ChatTemplate> {
        let location = std::panic::Location::caller();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| {
            value_error(format!("internal error: {error}"), "please report this, with the version of shardax-models")
        })?);
        // A template comes from a downloaded file and can loop forever, so its steps are limited.
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_formatter(|out, _, value| {
            let mut text = String::new();
            python_text(value, &mut text);
            out.write_str(&text).map_err(minijinja::Error::from)
        });
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_test("iterable", is_iterable);
        environment.add_template_owned(NAME, without_marks(template)).map_err(|error| {
            let message = format!("cannot parse the chat template: {}", described(&error));
            value_error(message, "check the template in `tokenizer_config.json` or `chat_template.jinja`").at(location)
        })?;
        Ok(ChatTemplate { environment, special_tokens: BTreeMap::new() })
    }

    /// Sets a variable of the template, such as `bos_token`.
    pub fn special_token(mut self, name: &str, text: String) -> ChatTemplate {
        self.special_tokens.insert(name.to_owned(), text);
        self
    }

    /// Renders a conversation up to the start of the assistant's next message. `messages` is a JSON list of objects, each
    /// with a `role` and a `content`.
    ///
    /// # Errors
    /// Returns an error if `messages` is not JSON, or if the template raises an exception.
    #[track_caller]
    pub fn render(&self, messages: &str) -> Result<String> {
        self.render_with(messages, "{}")
    }

    /// Renders a conversation with additional variables. `variables` is a JSON object, which can have `tools`,
    /// `documents`, `add_generation_prompt` (default `true`) and variables that the template defines, such as
    /// `enable_thinking`.
    ///
    /// # Errors
    /// Returns an error if `messages` or `variables` are not JSON, or if the template raises an error or does not
    /// end.
    #[track_caller]
    pub fn render_with(&self, messages: &str, variables: &str) -> Result<String> {
        let location = std::panic::Location::caller();
        let messages = parse_json("messages", messages).map_err(|error| error.at(location))?;
        let more = parse_json("variables", variables).map_err(|error| error.at(location))?;
        let mut context: BTreeMap<String, Value> =
            self.special_tokens.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
        context.insert("messages".to_owned(), messages);
        context.insert("add_generation_prompt".to_owned(), true.into());
        // Templates compare these variables with `none`, which fails for undefined variables.
        context.insert("tools".to_owned(), ().into());
        context.insert("documents".to_owned(), ().into());
        for name in more.try_iter().into_iter().flatten() {
            if let (Some(text), Ok(value)) = (name.as_str(), more.get_item(&name)) {
                context.insert(text.to_owned(), value);
            }
        }
        let template = self.environment.get_template(NAME);
        template.and_then(|template| template.render(context)).map_err(|error| {
            let message = format!("the chat template rejects the conversation: {}", described(&error));
            let help = "check the order of the roles, and that the messages have the fields that the template reads";
            value_error(message, help).at(location)
        })
    }
}

/// Parses an argument of `render_with`. `name` is the argument's name.
fn parse_json(name: &str, text: &str) -> Result<Value> {
    serde_json::from_str::<Value>(text).map_err(|error| {
        let message = format!("the {name} of a conversation are not valid JSON: {error}");
        value_error(
            message,
            "pass the messages as a list of objects with `role` and `content`, and the variables as an object",
        )
    })
}

/// Replaces the `generation` tags around the assistant's text, which only training uses, by conditions that are always
/// true.
fn without_marks(template: &str) -> String {
    let mut text = template.to_owned();
    for (mark, condition) in [("generation", "if true"), ("endgeneration", "endif")] {
        for [before, after] in [["{%", "%}"], ["{%-", "%}"], ["{%", "-%}"], ["{%-", "-%}"]] {
            text = text.replace(&format!("{before} {mark} {after}"), &format!("{before} {condition} {after}"));
        }
    }
    text
}

/// Formats an error with its line in the template.
fn described(error: &minijinja::Error) -> String {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| message.clone(), |line| format!("{message} (line {line})"))
}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(JinjaErrorKind::InvalidOperation, message))
}

/// Returns `true` for values that Python can iterate over. Unlike in `minijinja`, `none` is not iterable.
fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

/// The filter `tojson`, which formats JSON like Python.
fn tojson(value: Value, options: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    json::written(&value, indent)
        .map(Value::from_safe_string)
        .map_err(|error| minijinja::Error::new(JinjaErrorKind::BadSerialization, error.to_string()))
}

/// Formats a value like Python's `str`, because some templates print lists and dictionaries.
fn python_text(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Seq => {
            let items = value.try_iter().into_iter().flatten();
            separated(['[', ']'], items, out, python_repr);
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            separated(['{', '}'], keys, out, |key, out| {
                python_repr(key, out);
                out.push_str(": ");
                python_repr(&value.get_item(key).unwrap_or_default(), out);
            });
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Formats a value like Python's `repr`, which puts strings in quotes.
fn python_repr(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let escaped = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r");
            out.push(quote);
            out.push_str(&if quote == '\'' { escaped.replace('\'', "\\'") } else { escaped });
            out.push(quote);
        }
        None => python_text(value, out),
    }
}

/// Writes values between brackets, separated by commas.
fn separated(
    [open, close]: [char; 2],
    values: impl Iterator<Item = Value>,
    out: &mut String,
    write: impl Fn(&Value, &mut String),
) {
    out.push(open);
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write(&value, out);
    }
    out.push(close);
}

/// The function `strftime_now`: formats the current date and time.
fn strftime_now(format: String) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    strftime(&format, seconds)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The weekdays, starting with 1 January 1970.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time, in seconds after 1970, like `strftime`. Unknown codes are copied.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (month_name, weekday) = (MONTHS[month - 1], WEEKDAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        // These are the codes that published chat templates use.
        out.push_str(&match letters.next() {
            Some('Y') => format!("{year:04}"),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('-') => match letters.next() {
                Some('d') => day.to_string(),
                Some('m') => month.to_string(),
                other => format!("%-{}", other.map(String::from).unwrap_or_default()),
            },
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('%') => "%".to_owned(),
            other => format!("%{}", other.map(String::from).unwrap_or_default()),
        });
    }
    out
}

/// Returns the year, the month and the day of a number of days after 1 January 1970.
///
/// The computation starts each year in March, so that a leap day is the last day of its year. 400 years have 146,097
/// days.
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_formats_like_python() {
        // `datetime.fromtimestamp(seconds, UTC).strftime(...)`
        for (seconds, expected) in [
            (0, "01 Jan 1970 Thursday 00:00:00"),
            (951_782_400, "29 Feb 2000 Tuesday 00:00:00"),
            (1_764_225_001, "27 Nov 2025 Thursday 06:30:01"),
            (4_107_542_399, "28 Feb 2100 Sunday 23:59:59"),
            (4_107_542_400, "01 Mar 2100 Monday 00:00:00"),
        ] {
            assert_eq!(strftime("%d %b %Y %A %H:%M:%S", seconds), expected);
        }
        assert_eq!(strftime("%-d %y%% %q %", 0), "1 70% %q %");
    }
}
