// Reads a line of JSON (secret, headers) and a raw body; says whether isSigned() of docs/receiving.md takes them.

const { readFileSync } = require("node:fs");

const input = readFileSync(0);
const end = input.indexOf("\n");
const { secret, headers } = JSON.parse(input.subarray(0, end));
const accepted = isSigned(secret, headers, input.subarray(end + 1));
console.log(accepted ? "accepted" : "refused: no signature of this key");
