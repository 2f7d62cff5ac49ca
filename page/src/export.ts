import "./styles/tokens.css";
import "./styles/base.css";
import { mount } from "svelte";
import Export from "./Export.svelte";
import { app } from "./lib/app.svelte";
import { listen } from "./lib/keys";
import type { Exported } from "./lib/types";

const data = JSON.parse(document.getElementById("upcall-export")?.textContent ?? "null") as Exported;
document.title = data.title;
app.now = data.exported;
app.offline = true;
listen();
mount(Export, { target: document.getElementById("page") as HTMLElement, props: { data } });
