//! What the command says to words that make no sense: for each verb a sentence with the value at
//! fault, what to do next, and an exit status; the same as JSON.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use fake::Fake;
use serde_json::Value;

/// Words, the exit status, and what the sentence names.
const WRONG: &[(&str, i32, &str)] = &[
    ("frob", 2, "'frob'"),
    ("-o xml list", 2, "'xml'"),
    ("--machine ../x list", 2, "'../x'"),
    ("--machine other list", 3, "'other'"),
    ("list extra", 2, "'extra'"),
    ("nodes extra", 2, "'extra'"),
    ("machine extra", 2, "'extra'"),
    ("shutdown extra", 2, "'extra'"),
    ("check", 2, "<FILES>"),
    ("check /nowhere", 6, "/nowhere"),
    ("bundle x", 2, "--out <FILE>"),
    ("bundle /nowhere -O /nowhere/bundle", 6, "/nowhere"),
    ("sim --cpus 0", 2, "0 CPUs"),
    ("sim --memory 5", 2, "'5'"),
    ("sim /nowhere", 6, "/nowhere"),
    ("sim --timeout never", 2, "'never'"),
    ("show", 2, "<VM>"),
    ("show nobody", 11, "nobody"),
    ("show Not_A_Name", 11, "Not_A_Name"),
    ("run", 2, "<FILES>"),
    ("run /nowhere", 6, "/nowhere"),
    ("run --dry-run /nowhere", 6, "/nowhere"),
    ("run --lend 5 x", 2, "'5'"),
    ("run --disk x x", 2, "'x'"),
    ("serve --lend 4097KiB x", 2, "'4097KiB'"),
    ("serve /nowhere", 2, "Underpin is not beneath"),
    ("start", 2, "<VM>"),
    ("start nobody", 11, "nobody"),
    ("start web1", 12, "web1"),
    ("start --dry-run web1", 12, "web1"),
    ("stop nobody", 11, "nobody"),
    ("stop db", 12, "db"),
    ("stop web1 --timeout soon", 2, "'soon'"),
    ("kill nobody", 11, "nobody"),
    ("kill db", 12, "db"),
    ("pause nobody", 11, "nobody"),
    ("pause db", 12, "db"),
    ("resume nobody", 11, "nobody"),
    ("resume web1", 12, "web1"),
    ("reset nobody", 11, "nobody"),
    ("set nobody --weight 5", 11, "nobody"),
    ("set web1", 2, "--weight"),
    ("set web1 --weight 0", 2, "'0'"),
    ("set web1 --weight many", 2, "'many'"),
    ("set web1 --cap 101", 2, "'101'"),
    ("set web1 --base 3MiB", 2, "'3MiB'"),
    ("set web1 --max 3", 2, "'3'"),
    ("set web1 --claim all", 2, "'all'"),
    ("set web1 --blocks split", 2, "'split'"),
    ("set web1 --never maybe", 2, "'maybe'"),
    ("set web1 --hide maybe", 2, "'maybe'"),
    ("set web1 --hold 61s", 2, "'61s'"),
    ("set web1 --group A", 2, "'A'"),
    ("set web1 --link 0", 2, "'0'"),
    ("set web1 --link 0=off", 2, "'0=off'"),
    ("set web1 --link 2=down", 2, "'2=down'"),
    ("set nobody --link 0=up", 11, "nobody"),
    ("mem nobody", 11, "nobody"),
    ("mem db", 12, "db"),
    ("mem why nobody", 11, "nobody"),
    ("mem fit /nowhere", 6, "/nowhere"),
    ("mem reclaim web1", 2, "<SIZE>"),
    ("mem reclaim web1 64", 2, "'64'"),
    ("mem reclaim nobody 64MiB", 11, "nobody"),
    ("mem analyze nobody", 11, "nobody"),
    ("mem analyze --every soon", 2, "'soon'"),
    ("mem analyze --kpageflags web1", 2, "'web1'"),
    ("numa fly", 2, "'fly'"),
    ("numa why Not_A_Name", 11, "Not_A_Name"),
    (
        "numa move web1 999",
        2,
        "'999' is no node: use a number from 0 to 63",
    ),
    (
        "numa move web1 64",
        2,
        "'64' is no node: use a number from 0 to 63",
    ),
    (
        "numa move web1 x",
        2,
        "'x' is no node: use a number from 0 to 63",
    ),
    (
        "sim --exit-when-done --timeout 1s",
        2,
        "no VM file is named",
    ),
    ("top", 2, "terminal"),
    ("top -n 1", 2, "--batch"),
    ("top --batch -n 0", 2, "'0'"),
    ("top --batch -d 0s", 2, "'0s'"),
    ("metrics --listen nowhere", 2, "'nowhere'"),
    ("report", 2, "<DIRECTORY>"),
    ("report x --from /nowhere", 1, "/nowhere"),
    ("report x --every 0s", 2, "'0s'"),
    ("report x --for ever", 2, "'ever'"),
    ("trace nobody", 11, "nobody"),
    ("trace --classes wars", 2, "'wars'"),
    ("trace --stop web1", 2, "--stop"),
    ("trace --for ever", 2, "'ever'"),
    ("console", 2, "<VM>"),
    ("console nobody", 11, "nobody"),
    ("console --log nobody", 11, "nobody"),
    ("sim --unasked", 2, "--unasked"),
    ("stage --kernel /nowhere", 1, "/nowhere"),
    ("explain 99", 2, "'99'"),
    ("completion tcl", 2, "'tcl'"),
    ("man --directory /dev/null/x", 1, "/dev/null/x"),
];

#[test]
fn what_is_wrong_is_told_with_its_value_and_what_to_do() {
    let fake = Fake::start("arguments");
    let mut bad = Vec::new();
    for (words, status, named) in WRONG {
        let output = fake.run(words);
        let said = String::from_utf8(output.stderr).unwrap();
        let advice = ["help:", "try '--help'", "underpin explain"];
        if output.status.code() != Some(*status)
            || !output.stdout.is_empty()
            || !said.contains(named)
            || !advice.iter().any(|advice| said.contains(advice))
        {
            bad.push(format!("{words}: {:?} {said}", output.status.code()));
        }
        let output = fake.run(&format!("{words} -o json"));
        let said = String::from_utf8(output.stderr).unwrap();
        let error = serde_json::from_str::<Value>(&said).unwrap_or_default()["error"].take();
        let message = error["message"].as_str().unwrap_or("");
        // A value beside `-o json` twice is another mistake, of the test.
        let twice = words.starts_with("-o ");
        if output.status.code() != Some(*status)
            || error["code"] != *status
            || message.contains('\n')
            || !(message.contains(named) || twice)
            || error["help"].as_str().is_none_or(str::is_empty)
        {
            bad.push(format!(
                "{words} -o json: {:?} {said}",
                output.status.code()
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
