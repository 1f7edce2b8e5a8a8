// What the gate of a quantised KV cache (kv_gate.h) reads unless it is given another text: about 600 tokens of Jerome K.
// Jerome, Three Men in a Boat, 1889, in the public domain.
#pragma once

namespace cachalot {

inline constexpr char kKvGateText[] = R"(Harris will be just that sort of man when he grows up, I know, and I told him so.  I said I could not permit him to take so much labour upon himself.  I said:

"No; you get the paper, and the pencil, and the catalogue, and George write down, and I'll do the work."

The first list we made out had to be discarded.  It was clear that the upper reaches of the Thames would not allow of the navigation of a boat sufficiently large to take the things we had set down as indispensable; so we tore the list up, and looked at one another!

George said:

"You know we are on a wrong track altogether.  We must not think of the things we could do with, but only of the things that we can't do without."

George comes out really quite sensible at times.  You'd be surprised.  I call that downright wisdom, not merely as regards the present case, but with reference to our trip up the river of life, generally.  How many people, on that voyage, load up the boat till it is ever in danger of swamping with a store of foolish things which they think essential to the pleasure and comfort of the trip, but which are really only useless lumber.

How they pile the poor little craft mast-high with fine clothes and big houses; with useless servants, and a host of swell friends that do not care twopence for them, and that they do not care three ha'pence for; with expensive entertainments that nobody enjoys, with formalities and fashions, with pretence and ostentation, and with--oh, heaviest, maddest lumber of all!--the dread of what will my neighbour think, with luxuries that only cloy, with pleasures that bore, with empty show that, like the criminal's iron crown of yore, makes to bleed and swoon the aching head that wears it!

It is lumber, man--all lumber!  Throw it overboard.  It makes the boat so heavy to pull, you nearly faint at the oars.  It makes it so cumbersome and dangerous to manage, you never know a moment's freedom from anxiety and care, never gain a moment's rest for dreamy laziness--no time to watch the windy shadows skimming lightly o'er the shallows, or the glittering sunbeams flitting in and out among the ripples, or the great trees by the margin looking down at their own image, or the woods all green and golden, or the lilies white and yellow, or the sombre-waving rushes, or the sedges, or the orchis, or the blue forget-me-nots.)";

}  // namespace cachalot
