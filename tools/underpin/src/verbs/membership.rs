//! `underpin cluster`: keys and descriptions of clusters.

use super::Context;
use crate::{
    cli::ClusterVerb,
    cluster::{self, ClusterFile, Host},
    failure::Result,
    output::Output,
};
use serde_json::json;

/// Makes a key, or checks a cluster file.
pub fn cluster(context: &Context, verb: &ClusterVerb) -> Result<()> {
    match verb {
        ClusterVerb::Key { file } => {
            cluster::make_key(file)?;
            let text = |_: Output| {
                format!(
                    "{}: a new key; copy it to each host of the cluster\n",
                    file.display()
                )
            };
            context.output.result(|| json!({ "key": file }), text)
        }
        ClusterVerb::Check { file } => {
            let cluster = ClusterFile::read(file)?;
            if let Some(host) = cluster.hosts.first() {
                cluster.record(&host.name)?;
            }
            let name = |host: &Host| host.name.clone();
            let names: Vec<String> = cluster.hosts.iter().map(name).collect();
            let json = || json!({ "file": file, "number": cluster.number, "hosts": names });
            let text =
                |_: Output| format!("{}: good; hosts {}\n", file.display(), names.join(", "));
            context.output.result(json, text)
        }
    }
}
