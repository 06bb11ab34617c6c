"""Names of states, side outputs and operators in Flink's documents and examples that are no plain identifiers."""

NAMES_OF_FLINK = [
    "text state",
    "late-data",
    "sumOfTips",
    "lateFares",
    "keyHasBeenSeen",
    "RulesBroadcastState",
    "RuleBroadcastState",
    "saved ride",
    "saved fare",
    "ride event",
    "timer-state",
    "buffered-elements",
    "fraud-detector",
    "side-output",
]
