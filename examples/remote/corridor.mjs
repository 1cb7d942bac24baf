// An environment that is not in Python: a corridor, served to operant by Node. docs/remote.md describes the frames.
//
//     OPERANT_TOKEN=... node corridor.mjs 65432
//
// and on the agent's side, with the same token:
//
//     Environment.create(remote="socket-client", host="127.0.0.1", port=65432)

import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import net from "node:net";

const VERSION = 1;
const [HELLO, PROOF, WELCOME, REFUSED] = [1, 2, 3, 4];
const [DESCRIBE, RESET, STEP, CLOSE] = [16, 17, 18, 19];
const [DESCRIPTION, ANSWER, , CLOSED] = [32, 33, 34, 35];
const TAG = 16;

const token = Buffer.from((process.env.OPERANT_TOKEN ?? "").trim());

// The environment: ten places, a step to the left or right costs 1, the last place is the goal.

class Corridor {
  static description = {
    name: "corridor",
    states: { type: "float", shape: [1], min_value: 0.0, max_value: 9.0 },
    actions: { type: "int", num_values: 2 },
    max_episode_timesteps: 100,
    num_actors: 1,
  };

  reset() {
    this.place = 0;
    this.steps = 0;
  }

  // Returns terminal: 0 goes on, 1 ended, 2 cut by the time limit.
  step(action) {
    this.place = Math.max(0, this.place + (action === 1 ? 1 : -1));
    this.steps += 1;
    return this.place === 9 ? 1 : this.steps === 100 ? 2 : 0;
  }
}

// Frames: length (4 bytes), kind (1 byte), content, tag (16 bytes, after the greeting).

class Seal {
  constructor(role, server, client) {
    this.key = derive(role, server, client);
    this.count = 0n;
  }

  tag(body) {
    const number = Buffer.alloc(8);
    number.writeBigUInt64LE(this.count++);
    return createHmac("sha256", this.key).update(number).update(body).digest().subarray(0, TAG);
  }
}

function derive(role, server, client) {
  const version = Buffer.from([VERSION, 0]);
  return createHmac("sha256", token).update(role).update(version).update(server).update(client).digest();
}

function frame(kind, content, seal) {
  const head = Buffer.alloc(5);
  head.writeUInt32LE(1 + content.length + (seal ? TAG : 0));
  head[4] = kind;
  const body = Buffer.concat([head, content]);
  return seal ? Buffer.concat([body, seal.tag(body)]) : body;
}

// An answer: seconds, own return, rows that acted, rows of states, bytes of text; then the rows.

function answer(terminal, reward, environment) {
  const acted = terminal === null ? 0 : 1;
  const content = Buffer.alloc(28 + 9 * acted + 4 + 4);
  content.writeDoubleLE(0, 0);
  content.writeDoubleLE(NaN, 8); // it reports no return of its own
  content.writeUInt32LE(acted, 16);
  content.writeUInt32LE(1, 20);
  content.writeUInt32LE(0, 24);
  if (acted) {
    content[28] = terminal;
    content.writeDoubleLE(reward, 29);
  }
  const rows = 28 + 9 * acted;
  content.writeUInt32LE(0, rows); // the actor's number
  content.writeFloatLE(environment.place, rows + 4);
  return content;
}

function serve(socket) {
  const environment = new Corridor();
  const nonce = randomBytes(32);
  let pending = Buffer.alloc(0);
  let theirs = null; // seals, once we know one another
  let ours = null;
  let running = false;
  socket.setNoDelay(true);
  socket.setTimeout(60_000, () => socket.destroy());
  socket.on("error", () => socket.destroy());

  function greet(kind, content) {
    if (kind !== PROOF || content.length !== 66) return socket.destroy();
    const client = content.subarray(2, 34);
    const known = content.readUInt16LE(0) === VERSION;
    if (!known || !timingSafeEqual(content.subarray(34), derive("client proof", nonce, client))) {
      return socket.end(frame(REFUSED, Buffer.from("The token is not the server's, or another version.")));
    }
    socket.write(frame(WELCOME, derive("server proof", nonce, client)));
    theirs = new Seal("client frames", nonce, client);
    ours = new Seal("server frames", nonce, client);
  }

  function obey(kind, content) {
    if (kind === DESCRIBE && content.length === 0) {
      socket.write(frame(DESCRIPTION, Buffer.from(JSON.stringify(Corridor.description)), ours));
    } else if (kind === RESET && content.length === 8) {
      environment.reset();
      running = true;
      socket.write(frame(ANSWER, answer(null, 0, environment), ours));
    } else if (kind === STEP && content.length === 4 && running) {
      const action = content.readInt32LE(0);
      if (action !== 0 && action !== 1) return socket.destroy();
      const terminal = environment.step(action);
      running = terminal === 0;
      socket.write(frame(ANSWER, answer(terminal, -1, environment), ours));
    } else if (kind === CLOSE) {
      socket.end(frame(CLOSED, Buffer.alloc(0), ours));
    } else {
      socket.destroy();
    }
  }

  socket.on("data", (data) => {
    pending = Buffer.concat([pending, data]);
    while (pending.length >= 4 && !socket.destroyed) {
      const length = pending.readUInt32LE(0);
      if (length > 256 || length < (theirs ? 1 + TAG : 1)) return socket.destroy(); // nothing longer may come
      if (pending.length < 4 + length) return;
      let body = pending.subarray(0, 4 + length);
      pending = pending.subarray(4 + length);
      if (theirs) {
        const tag = body.subarray(-TAG);
        body = body.subarray(0, -TAG);
        if (!timingSafeEqual(tag, theirs.tag(body))) return socket.destroy();
        obey(body[4], body.subarray(5));
      } else {
        greet(body[4], body.subarray(5));
      }
    }
  });

  const hello = Buffer.concat([Buffer.from("operant\0"), Buffer.from([VERSION, 0]), nonce]);
  socket.write(frame(HELLO, hello));
}

const server = net.createServer(serve);
server.listen(Number(process.argv[2] ?? 65432), "127.0.0.1", () => {
  console.log(`Serving a corridor on port ${server.address().port}`);
});
