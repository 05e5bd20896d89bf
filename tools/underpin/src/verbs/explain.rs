//! `underpin explain`: what the command's exit statuses mean, and what happens to memory.

use super::Context;
use crate::{
    codes::{self, Code},
    failure::{Failure, Result, exit},
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
};
use serde_json::{Value, json};

/// Explains one status or event, or lists all.
pub fn explain(context: &Context, what: Option<&str>) -> Result<()> {
    let Some(what) = what else {
        return context
            .output
            .result(|| codes::all().map(to_json).collect(), list);
    };
    let code = codes::find(what).ok_or_else(|| {
        let message = format!("no exit status or event has the number or name '{what}'");
        Failure::new(exit::USAGE, message).help("`underpin explain` lists them all")
    })?;
    context
        .output
        .result(|| to_json(code), |output| to_text(code, output))
}

fn number(code: &Code) -> String {
    code.number
        .map_or_else(String::new, |number| number.to_string())
}

fn to_json(code: &Code) -> Value {
    json!({
        "code": code.number, "name": code.name, "meaning": code.meaning,
        "causes": code.causes, "advice": code.advice,
    })
}

fn list(output: Output) -> String {
    let mut table = Table::new(&[("CODE", Right), ("NAME", Left), ("MEANING", Left)]);
    for code in codes::all() {
        table.row([number(code), code.name.to_owned(), code.meaning.to_owned()]);
    }
    table.render(output)
}

fn to_text(code: &Code, output: Output) -> String {
    let title = format!("{} {}", number(code), code.name);
    let title = output.paint(Tone::Strong, title.trim_start());
    let points = |title: &str, lines: &[&str]| {
        let lines = lines.iter().map(|line| format!("  - {line}\n"));
        format!("{title}\n{}", lines.collect::<String>())
    };
    format!(
        "{title}: {}\n{}{}",
        code.meaning,
        points("Usual causes", code.causes),
        points("What to do", code.advice)
    )
}
