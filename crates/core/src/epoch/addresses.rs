//! The addresses that a daemon may dial, and their order.

/// Configured addresses, those that a hub told of, and the one that worked last.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    configured: Vec<String>,
    told: Vec<String>,
    good: Option<String>,
    turn: usize,
}

impl Addresses {
    /// More addresses than these of one hub's telling are not kept.
    const TOLD: usize = 64;

    pub fn new(configured: Vec<String>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// This one worked, and its hub told of these.
    pub fn worked(&mut self, address: &str, told: Vec<String>) {
        self.good = Some(address.to_owned());
        self.told = told;
        self.told.truncate(Self::TOLD);
        self.turn = 0;
    }

    /// Back to what is configured.
    pub fn forget(&mut self) {
        (self.told, self.good, self.turn) = (Vec::new(), None, 0);
    }

    /// From the first again.
    pub const fn restart(&mut self) {
        self.turn = 0;
    }

    /// The next in turn: the last good one first, then the others. `but` is passed over while there is another.
    pub fn next(&mut self, but: Option<&str>) -> String {
        let mut order: Vec<&String> = Vec::new();
        for address in self.good.iter().chain(&self.configured).chain(&self.told) {
            if !order.contains(&address) {
                order.push(address);
            }
        }
        if order.len() > 1 {
            order.retain(|address| Some(address.as_str()) != but);
        }
        let next = order.get(self.turn % order.len().max(1)).map(|address| (*address).clone());
        self.turn = self.turn.wrapping_add(1);
        next.unwrap_or_default()
    }
}
