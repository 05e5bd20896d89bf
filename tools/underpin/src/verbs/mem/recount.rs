//! `underpin mem recount`: whether the frame table, the maps of VMs and their accounts agree.

use super::super::Context;
use crate::failure::{Result, exit};
use serde_json::json;

/// Recounts; fails where something does not agree.
pub fn recount(context: &Context) -> Result<u8> {
    let found = context.connect()?.recount()?;
    let agrees = found.lost == 0 && found.unequal == 0;
    context.output.result(
        || {
            json!({
                "private": found.private, "shared": found.shared, "cached": found.cached,
                "overlay": found.overlay, "lost": found.lost, "unequal": found.unequal,
            })
        },
        |_| {
            let counted = format!(
                "{} private frames, {} shared, {} of overlays, {} kept\n",
                found.private, found.shared, found.overlay, found.cached
            );
            if agrees {
                return format!(
                    "{counted}all of them are somebody's, and all accounts are right\n"
                );
            }
            format!(
                "{counted}{} frames are nobody's, the first of them {:#x}; {} accounts are wrong\n",
                found.lost, found.first_lost, found.unequal
            )
        },
    )?;
    Ok(if agrees { exit::OK } else { exit::FAILED })
}
