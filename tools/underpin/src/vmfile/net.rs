//! The network devices of a VM file.

use super::{decode::Decoder, is_name, section::Section};
use abi::bundle::NETS_MAX;

const KEYS: [&str; 8] = [
    "switch", "mac", "mtu", "offloads", "uplink", "learns", "limit", "floods",
];

/// Frames to more than one receiver that a VM may send in a second, where its file says nothing.
const FLOODS: u32 = 1000;

/// A network device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// The switch that it is plugged into.
    pub switch: String,
    /// Its address.
    pub mac: [u8; 6],
    /// The longest packet in one frame, in bytes.
    pub mtu: u16,
    /// Whether checksums and cutting into segments are left to who needs them.
    pub offloads: bool,
    /// Whether the switch has a way out of the machine.
    pub uplink: bool,
    /// How many more addresses it may send from.
    pub learns: u16,
    /// Bytes that it may send in a second; 0: no limit.
    pub limit: u64,
    /// Frames that it may send in a second to more than one receiver; 0: no limit.
    pub floods: u64,
}

impl Decoder<'_> {
    /// All network devices of the VM of that name.
    pub fn nets(&self, root: &Section<'_, '_>, vm: &str) -> Vec<Net> {
        let sections = root.sections("[[net]]", "net", &KEYS);
        if let Some(extra) = sections.get(NETS_MAX) {
            let message = format!(
                "{} network devices are more than a VM may have",
                sections.len()
            );
            let help = format!("use at most {NETS_MAX}");
            self.problems.add(extra.span(), message, &help);
        }
        let each = sections.iter().enumerate();
        each.filter_map(|(n, section)| self.net(section, (vm, n)))
            .collect()
    }

    fn net(&self, net: &Section<'_, '_>, (vm, n): (&str, usize)) -> Option<Net> {
        let mac = self.mac(net).unwrap_or_else(|| default_mac(vm, n));
        let device = Net {
            switch: String::new(),
            mac,
            mtu: net.number("mtu", 68..65_536, 1500) as u16,
            offloads: net.boolean("offloads", true),
            uplink: net.boolean("uplink", false),
            learns: net.number("learns", 0..257, 0) as u16,
            limit: net.rate("limit", "\"100MB/s\"").unwrap_or(0),
            floods: net.number("floods", 0..1_000_001, FLOODS).into(),
        };
        if net.has("switch").is_none() {
            net.missing("switch", "add switch = \"lan\" or the like");
        }
        let switch = net.text("switch", "\"lan\"")?;
        if !is_name(switch.value) || switch.value.len() > 23 {
            let message = format!("'{}' cannot be a switch's name", switch.value);
            let help = "use 1 to 23 characters: small letters a to z, digits and hyphens";
            self.problems.add(&switch.span, message, help);
            return None;
        }
        Some(Net {
            switch: switch.value.to_owned(),
            ..device
        })
    }

    fn mac(&self, net: &Section<'_, '_>) -> Option<[u8; 6]> {
        let found = net.text("mac", "\"02:00:00:00:00:01\"")?;
        let mac = parse_mac(found.value);
        if mac.is_none() {
            let message = format!("'{}' is no address of a network device", found.value);
            let help = "use six pairs of hexadecimal digits with colons, the first pair even and not all zero; or leave mac out";
            self.problems.add(&found.span, message, help);
        }
        mac
    }
}

/// An address of one host; `None` where the text is none.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut pairs = text.split(':');
    let mut mac = [0; 6];
    for byte in &mut mac {
        let pair = pairs.next().filter(|pair| pair.len() == 2)?;
        let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(pair, 16).ok().filter(|_| is_hex)?;
    }
    let is_host = pairs.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6];
    is_host.then_some(mac)
}

/// The address of device `n` of a VM that is told none: locally administered, the same each time,
/// and made of the name (FNV-1a), so that two VMs hardly ever have the same.
fn default_mac(vm: &str, n: usize) -> [u8; 6] {
    let hash = vm
        .bytes()
        .chain([n as u8])
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let bytes = hash.to_le_bytes();
    [0x02, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_hosts() {
        assert_eq!(parse_mac("02:00:0a:Ff:00:01"), Some([2, 0, 10, 255, 0, 1]));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "03:00:00:00:00:01",
            "00:00:00:00:00:00",
            "0g:00:00:00:00:00",
            "+2:00:00:00:00:00",
        ] {
            assert_eq!(parse_mac(wrong), None, "{wrong}");
        }
        let macs = [
            default_mac("a", 0),
            default_mac("a", 1),
            default_mac("b", 0),
        ];
        assert!(macs[0] != macs[1] && macs[0] != macs[2] && macs[1] != macs[2]);
        assert!(macs.iter().all(|mac| mac[0] == 2));
    }
}
