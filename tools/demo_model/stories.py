"""Children's stories: about forty plots that keep a name, an object and a place from beginning to end."""

from words import (
    ANIMALS,
    BOYS,
    COLORS,
    FOODS,
    GIRLS,
    NUMBERS,
    OBJECTS,
    PLACES,
    RELATIVES,
    TRAITS,
    WEATHER,
    article,
    fill,
    made_up_name,
)

OPENINGS = """
Once upon a time, there was {atrait} {kid} named {n}. {he^} lived near the {p}. {he^} had {aco}.
One [sunny|cold|quiet|windy] morning, {n} went to the {p}. {w^}. In {his} hand {he} held {aco}.
{n} was {atrait} {kid} who loved the {p}. {his^} favorite thing in the world was {aco}.
There once lived {atrait} {kid} called {n}. Every day {he} walked to the {p} with {his} {co}.
In a little house by the {p} lived {atrait} {kid}. {his^} name was {n}, and {he} owned {aco}.
Long ago, near the {p}, {n} found {aco} under a tree. {he^} took good care of it.
It was {n}'s birthday. {his^} {rel} gave {him} {aco}, and together they went to the {p}.
"""
ENDINGS = """
From that day on, {n} always took good care of the {o}.
That night, {n} slept with the {o} next to {his} bed.
{n} never forgot that day at the {p}.
And {n} smiled all the way home from the {p}.
After that, {n} and {f} often met at the {p}.
"[What a day|What a good day|I had fun]!" said {n}, and {he} carried the {o} home.
When the stars came out over the {p}, {n} was happy.
"""
# A plot a paragraph, a beat a line.
PLOTS = """
But one day the {o} was gone. "Where is my {o}?" asked {n}.
{n} looked [under the bed and behind the door|high and low], but it was not there.
{his^} friend {f} came to help. "[Let us look together|Do not cry, I will help you]," said {f}.
They met {aan}. The {an} {cry} and ran ahead of them.
There, [under a bench|behind a big rock|in the tall grass], lay the {o}!
{n} hugged {f}, and the {an} got {treat}.

{f} had no {o}, and {f} looked sad.
{n} thought for a moment. "[Do you want to play with my {o}|Shall we share the {o}]?" {he} asked.
{f} smiled. They took turns all day at the {p}.
"Sharing makes it more fun," said {n}.

{n} was afraid of [the dark|loud thunder|deep water|the old bridge].
That evening {he} heard {aan} near the {p}. It {cry}, and it sounded [scared|lonely|hurt].
"I must help, even if I am afraid," said {n}.
{he^} took the {o} in one hand and held {his} {rel}'s hand with the other.
Step by step they went on until they found the {an}. They gave it {treat}.
{n} was not so afraid anymore. Being brave means trying when you are scared.

One day the {o} broke. {n} wanted to cry.
"We can fix it," said {his} {rel}. "We need [glue and time|a little wood and some string|patience and two hands]."
They worked all afternoon. At first it did not hold, so they tried again.
At last the {o} was whole. It was even better than before.

{n} was running inside the house with the {o}, and {he} broke a [cup|vase|window|plate].
{he^} hid the pieces because {he} was scared.
"Who broke this?" asked {his} {rel}.
{n} took a deep breath. "I did it. I am sorry," {he} said.
{his^} {rel} was not angry. "Thank you for telling the truth," {relhe} said.
They cleaned the floor together and then walked to the {p}.

A big wind came and blew the {o} up into a tree at the {p}.
{n} could not reach it. {he^} jumped and jumped.
Then {aan} came. It {cry} and climbed up to the {o}.
The {o} fell down into {n}'s arms. "Thank you!" {he} called.
{n} gave the {an} {treat}, and they were friends.

{n} wanted to give the {o} to {f}, because {f} was sick.
{he^} walked past the {p}, and {w}.
On the way {he} met {aan}. "Where are you going?" it seemed to ask.
"I am taking this {co} to {f}," said {n}.
When {f} saw the {o}, {f} felt better at once.
The two friends laughed and told stories until evening.

There was a race at the {p}. {f} was very fast, and {n} was slow.
"I will win," said {f}. {n} only smiled and held the {o} tight.
In the middle of the race {f} fell down.
{n} stopped and helped {f} up. They crossed the line together.
Everyone clapped. {n} got a prize for being kind, and {f} said thank you.

{n} planted a seed beside the {p} and put the {o} next to it.
Every day {he} gave it water. For a long time nothing happened.
"Be patient," said {his} {rel}. "[Good things take time|Seeds need time]."
One morning there was a little green leaf. Soon it was a tall flower.
{n} danced around it with the {o}.

{n} had {num} {food} in a basket. {he^} wanted to eat all of them.
Then {he} saw {f}, who was sitting alone at the {p} and looked hungry.
"You can have {num2} of my {food}," said {n}.
Now {f} had {num2} and {n} had {num3}. They ate together.
To say thanks, {f} painted a little star on the {o}.

One night {n} heard a strange sound at the {p}. Was it a monster?
{n} held up the {o} and walked closer. {his^} heart beat fast.
It was only {aan}! It {cry} because it was hungry.
{n} laughed and gave it {treat}. There was nothing to fear.

{n} was lost. {he^} did not know the way back from the {p}.
"[Stay calm|Do not worry]," {he} told {himself}. {he^} sat down with the {o} on {his} knees.
Then {aan} came by and {cry}. {n} followed it down the path.
Soon {he} saw {his} house. {his^} {rel} ran out and hugged {him}.
"I kept the {o} safe, and it kept me safe," said {n}.

{f} said that nobody could build a tower as high as the {p}.
{n} put one block on another, and the {o} at the very top.
Three times the tower fell. Three times {n} began again.
The fourth time it stood. "You did it!" cried {f}.

It was time to clean the room, but {n} did not want to.
"If you do not clean, you cannot find your {o}," said {his} {rel}.
{n} looked for the {o}. It was under a pile of socks!
So {n} cleaned the whole room. Then they went to the {p} to play.

A new child came to the {p}. The new child's name was {f}, and {f} was shy.
{n} walked over with the {o}. "Hello, I am {n}. Do you want to see my {o}?"
{f} nodded. Soon they were laughing and running.
Now {f} had a friend, and {n} had one more.

{n} made a wish and threw a coin into the well at the {p}.
"I wish that my {o} could talk," {he} said.
"Hello, {n}," said the {o}! {n} jumped with surprise.
The {o} told {him} about faraway lands and old kings.
In the morning it was silent again. Was it a dream? {n} did not know.

{n} wanted to sell the {o} at the {p} to buy a present for {his} {rel}.
Many people looked, but nobody bought it.
Then {f} came. "I will give you a cake for it," said {f}.
{n} gave the cake to {his} {rel}. {relhe^} shared it with everyone.
And {f} gave the {o} back, because {f} was a good friend.

Rain came down on the {p}, and the water rose.
{n} saw a little {an} on a stone in the middle of the water.
{n} tied a rope to the {o} and threw it. The {an} held on.
{n} pulled and pulled until it was safe. It {cry} happily.
"Well done," said {his} {rel}.

{n} told everyone that {he} had seen a dragon at the {p}. It was not true.
People ran away and dropped their things. {f} lost a shoe.
{n} felt bad. "There is no dragon. I made it up," {he} said.
{he^} gave {f} the {o} to say sorry, and helped to find the shoe.
After that {n} told the truth.

{n} and {f} both wanted the {o}. They pulled and shouted.
Then an old {an} {cry}, and they stopped.
"We are friends," said {f}. "A {o} is not worth a fight."
They made a plan: {n} would have it in the morning, and {f} after lunch.
At the {p} they shook hands.

{n} was sick and had to stay in bed. {he^} could see the {p} from the window.
{f} came with {num} {food} and told funny stories.
{n} held the {o} and laughed. Little by little {he} felt better.
After a week {he} could run to the {p} again.

Winter came to the {p}. {w^}.
{n} saw {aan} that had no warm place to sleep.
{he^} made a small house from a box and put the {o} inside, so that it was soft.
The {an} {cry} and fell asleep. In spring it came back to say thank you.

{n} wanted to learn to [swim|read|dance|whistle|ride a horse], but it was hard.
"I cannot do it," {he} said, and {he} kicked the {o}.
"You cannot do it yet," said {his} {rel}. "Try a little every day."
{n} tried every day at the {p}. After a month {he} could do it!
{he^} showed everyone, and {he} said sorry to the {o}.

There was a big party at the {p}. {n} wanted to bring something.
{he^} baked {food} with {his} {rel}. They smelled wonderful.
{n} put them all around the {o} so that it looked like a crown.
{f} said, "This is the best table at the party!"

{n} saw a light far behind the {p}. {he^} took the {o} and went to look.
The light was a lantern, and an old man sat beside it. He could not find his glasses.
"They are on your head," said {n}. The old man laughed.
He thanked {him} and told {him} the secret of the {o}: it brought luck to kind people.

{n} and {f} went on a trip with a boat past the {p}.
They took {num} {food} and the {o}.
The wind was strong, and the boat went around and around.
"Use the {o}!" cried {f}. {n} used it to row, and they came back safely.

A bird took the {o} and flew to the top of the {p}.
"Please give it back," called {n}. The bird only looked at {him}.
{n} put some seeds on the ground and waited quietly.
The bird came down, dropped the {o}, and ate the seeds.
{n} learned that asking nicely, with a gift, works better than shouting.

The king came to the {p} and asked, "Who has the most beautiful thing?"
People showed gold and jewels. {n} showed {his} {co}.
"Why is it beautiful?" asked the king.
"Because {f} gave it to me," said {n}.
The king nodded. "Friendship is the most beautiful thing," he said, and {n} won.

{n} could not sleep. {he^} missed {his} {rel}, who was away.
{he^} looked at the moon over the {p} and held the {o}.
"The same moon shines on {him2} too," {he} thought.
In the morning the door opened, and there stood {his} {rel}!

{n} found a map inside the {o}. There was a cross near the {p}.
{n} and {f} took a shovel and walked for an hour.
They dug a deep hole. At last they hit a box!
In the box were {num} {food} made of chocolate, and a letter: "For the ones who do not give up."

{n}'s {an} ran away to the {p}. {n} took the {o} and ran after it.
"Come back!" {he} called. The {an} {cry} but did not stop.
{n} sat down and offered it {treat}. Slowly it came closer.
{n} hugged it. "I was worried about you," {he} said.

{n} wanted to be as tall as {f}. {he^} stood on the {o} and fell down.
"Being small is good too," said {his} {rel}. "You can go where tall people cannot."
The next day a kitten was stuck in a hole near the {p}. Only {n} was small enough to reach it.
Everyone cheered for {n}.

{f} moved far away, and {n} was sad.
{n} wrote a letter at the {p} and drew a picture of the {o}.
After a week a letter came back. "I miss you too," wrote {f}.
They wrote to each other every week. They were still friends.

At the {p} there was a machine that nobody could start.
{n} looked at it for a long time. One part was missing.
"My {o} has the same shape!" {he} said, and {he} put it in.
The machine began to hum. It made music for the whole town.

{n} helped {his} {rel} to carry water to the {p}. It was hard work.
"Why do we not use the {o}?" asked {n}.
They tied two buckets to it, and now it was easy.
"You are clever," said {his} {rel}.

{n} took {f}'s {o} without asking and went to the {p}.
All day {n} could not enjoy it. {he^} felt bad inside.
In the evening {he} brought it back. "I took it without asking. I am sorry," {he} said.
"Thank you for telling me," said {f}. "Next time, just ask."

{n} and {f} counted the stars above the {p}. They counted to {num} and fell asleep.
{n} dreamed that the {o} could fly. It carried {him} over the clouds.
Below, the {p} was as small as a coin.
When {n} woke up, a feather lay on the {o}.

A painter came to the {p}. He wanted to paint something special.
{n} showed him the {o}. "That is just what I need," said the painter.
He painted {n} with the {co}, and everyone came to see it.
The picture still hangs near the {p}.

{n} was bored. "There is nothing to do," {he} said.
{his^} {rel} put the {o} on the table. "What could this be?"
"A ship! A hat! A house for {aan}!" cried {n}.
{he^} played until it was dark at the {p}. {he^} was not bored anymore.

It was very hot, and all the plants near the {p} were dry.
{n} filled the {o} with water, again and again.
{f} came to help, and then {f}'s family came, and then the whole street.
By evening every plant had water. "Together we can do a lot," said {n}.

{n} wanted to catch the rainbow over the {p}.
{he^} ran and ran with the {o}, but the rainbow was always farther away.
"You cannot catch it," said {his} {rel}, "but you can look at it."
So they sat down and looked until it was gone.
"I will remember it," said {n}.
"""


def paragraphs(text):
    return [[line for line in part.splitlines() if line] for part in text.strip().split("\n\n")]


OPENING_LIST, ENDING_LIST = paragraphs(OPENINGS)[0], paragraphs(ENDINGS)[0]
PLOT_LIST = paragraphs(PLOTS)


def draw_cast(random, name=None, girl=None, thing=None, place=None):
    """The fields of one story."""
    girl = random.random() < 0.5 if girl is None else girl
    if name is None:
        name = (
            made_up_name(random)
            if random.random() < 0.12
            else random.choice(GIRLS if girl else BOYS)
        )
    friend = name
    while friend == name:
        friend = random.choice(GIRLS + BOYS)
    animal = random.choice(list(ANIMALS))
    relative = random.choice(list(RELATIVES))
    color = random.choice(COLORS)
    thing = thing or random.choice(OBJECTS)
    count = random.randint(4, 20)
    given = random.randint(1, count - 2)
    trait = random.choice(TRAITS)
    he = "she" if girl else "he"
    return {
        "n": name,
        "he": he,
        "him": "her" if girl else "him",
        "his": "her" if girl else "his",
        "himself": "herself" if girl else "himself",
        "kid": random.choice(["girl", "child"] if girl else ["boy", "child"]),
        "f": friend,
        "o": thing,
        "co": f"{color} {thing}",
        "aco": article(f"{color} {thing}"),
        "p": place or random.choice(PLACES),
        "an": animal,
        "aan": article(animal),
        "cry": ANIMALS[animal][0],
        "treat": ANIMALS[animal][1],
        "food": random.choice(FOODS),
        "rel": relative,
        "relhe": RELATIVES[relative],
        "him2": "her" if RELATIVES[relative] == "she" else "him",
        "w": random.choice(WEATHER),
        "trait": trait,
        "atrait": article(trait),
        "num": NUMBERS[count],
        "num2": NUMBERS[given],
        "num3": NUMBERS[count - given],
    }


def story(random, **wanted):
    """(text, fields)"""
    fields = draw_cast(random, **wanted)
    beats = [random.choice(OPENING_LIST), *random.choice(PLOT_LIST), random.choice(ENDING_LIST)]
    sentences = [fill(beat, fields, random) for beat in beats]
    parts, i = [], 0
    while i < len(sentences):
        size = random.randint(2, 3)
        parts.append(" ".join(sentences[i : i + size]))
        i += size
    return "\n\n".join(parts), fields
